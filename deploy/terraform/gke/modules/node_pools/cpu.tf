# The nodes of everything without an accelerator.

locals {
  scopes = ["https://www.googleapis.com/auth/cloud-platform"] # the account's roles decide, not scopes
}

resource "google_container_node_pool" "cpu" {
  name           = "cpu"
  cluster        = var.cluster
  node_locations = var.cpu_pool.zones

  autoscaling {
    min_node_count = var.cpu_pool.min_nodes
    max_node_count = var.cpu_pool.max_nodes
  }

  management {
    auto_repair  = true
    auto_upgrade = true
  }

  node_config {
    machine_type    = var.cpu_pool.machine_type
    disk_size_gb    = var.cpu_pool.disk_size_gb
    image_type      = "COS_CONTAINERD"
    service_account = var.service_account
    oauth_scopes    = local.scopes

    shielded_instance_config {
      enable_secure_boot          = true
      enable_integrity_monitoring = true
    }

    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }

  lifecycle {
    precondition {
      condition = length(setunion(["cpu"], keys(local.tpu), keys(local.gpu))) == 1 + length(var.gpu_pools) + sum(
        concat([0], [for pool in values(var.tpu_pools) : pool.hosts == 1 ? 1 : pool.slices])
      )
      error_message = "Two node pools would have one name. They are cpu, the names of GPU and one-host TPU pools, and NAME-0 and so on of each other TPU pool."
    }
    precondition {
      condition     = var.cpu_pool.min_nodes >= 1 && var.cpu_pool.max_nodes >= var.cpu_pool.min_nodes
      error_message = "cpu_pool: min_nodes must be at least 1, since the controllers run there, and max_nodes at least min_nodes."
    }
  }
}
