# A regional, VPC-native cluster with private nodes. The account of the nodes can pull images, write logs and metrics, and
# nothing else: jobs have identities of their own.

resource "google_service_account" "nodes" {
  account_id   = "${var.name}-nodes"
  display_name = "Nodes of ${var.name}"
}

# Logs and metrics have no resource below the project to grant them on. No role for storage is granted here or anywhere on
# the project.
resource "google_project_iam_member" "nodes" {
  project = var.project_id
  role    = "roles/container.defaultNodeServiceAccount"
  member  = "serviceAccount:${google_service_account.nodes.email}"
}

resource "google_container_cluster" "this" {
  # checkov:skip=CKV_GCP_12: Dataplane V2 enforces network policies; the argument network_policy is Calico's
  # checkov:skip=CKV_GCP_65: groups in RBAC need a group gke-security-groups of the organization
  # checkov:skip=CKV_GCP_66: a policy for Binary Authorization is the organization's
  # checkov:skip=CKV_GCP_69: node_config of the default pool, which is removed; each pool sets GKE_METADATA
  # checkov:skip=CKV_GCP_68: likewise; each pool sets secure boot
  name                     = var.name
  location                 = var.region
  network                  = var.network
  subnetwork               = var.subnetwork
  networking_mode          = "VPC_NATIVE"
  datapath_provider        = "ADVANCED_DATAPATH"
  enable_multi_networking  = true # cannot be changed later, and pools with more networks may come
  remove_default_node_pool = true
  initial_node_count       = 1
  deletion_protection      = var.deletion_protection
  enable_shielded_nodes    = true
  # Flow logs see traffic between pods of one node, too.
  enable_intranode_visibility = true
  resource_labels             = var.labels

  # Of the pool that is created and removed; without it that pool runs as the project's default account.
  node_config {
    service_account = google_service_account.nodes.email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]
  }

  release_channel {
    channel = var.release_channel
  }

  ip_allocation_policy {
    cluster_secondary_range_name  = var.pods_range_name
    services_secondary_range_name = var.services_range_name
  }

  workload_identity_config {
    workload_pool = "${var.project_id}.svc.id.goog"
  }

  private_cluster_config {
    enable_private_nodes    = true
    enable_private_endpoint = false
  }

  # By its DNS name, the API server is reachable for whom IAM allows; by its IP address, from these ranges only.
  control_plane_endpoints_config {
    dns_endpoint_config {
      allow_external_traffic = true
    }
  }

  master_authorized_networks_config {
    gcp_public_cidrs_access_enabled = false

    dynamic "cidr_blocks" {
      for_each = var.api_allowed_ranges
      content {
        display_name = cidr_blocks.key
        cidr_block   = cidr_blocks.value
      }
    }
  }

  master_auth {
    client_certificate_config {
      issue_client_certificate = false
    }
  }

  addons_config {
    gcs_fuse_csi_driver_config {
      enabled = true
    }
  }

  logging_config {
    enable_components = ["SYSTEM_COMPONENTS", "WORKLOADS"]
  }

  monitoring_config {
    enable_components = ["SYSTEM_COMPONENTS", "POD", "JOBSET"]

    managed_prometheus {
      enabled = true
    }
  }

  maintenance_policy {
    recurring_window {
      start_time = "2026-01-03T02:00:00Z"
      end_time   = "2026-01-03T14:00:00Z"
      recurrence = "FREQ=WEEKLY;BYDAY=SA,SU"
    }

    dynamic "maintenance_exclusion" {
      for_each = var.no_upgrades
      content {
        exclusion_name = maintenance_exclusion.key
        start_time     = maintenance_exclusion.value.start
        end_time       = maintenance_exclusion.value.end

        exclusion_options {
          scope = "NO_MINOR_OR_NODE_UPGRADES"
        }
      }
    }
  }

  lifecycle {
    # The default pool is gone after creation; its settings never differ.
    ignore_changes = [node_config]
  }

  depends_on = [google_project_iam_member.nodes]
}
