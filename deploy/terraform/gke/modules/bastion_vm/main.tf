# The daemon on a small VM: deploy/startup.sh and deploy/bastion.service, as docs/how-to/run-on-gcp.md creates it by hand.

resource "google_compute_instance" "this" {
  # checkov:skip=CKV_GCP_38: Google's keys encrypt the disk, which holds nothing that is not in the bucket
  name                      = var.name
  zone                      = var.zone
  machine_type              = var.machine_type
  allow_stopping_for_update = true
  deletion_protection       = !var.allow_delete

  boot_disk {
    initialize_params {
      image = "debian-cloud/debian-12"
      size  = 10
      type  = "pd-balanced"
    }
  }

  # No access_config: no external address. Packages come through Cloud NAT.
  network_interface {
    subnetwork = var.subnetwork
  }

  # Without the second scope, the API server knows the account by its number, not by its e-mail address.
  service_account {
    email  = var.account
    scopes = ["cloud-platform", "userinfo-email"]
  }

  shielded_instance_config {
    enable_secure_boot          = true
    enable_vtpm                 = true
    enable_integrity_monitoring = true
  }

  metadata = {
    block-project-ssh-keys = "true"
    enable-oslogin         = "TRUE"
    bastion-root           = var.root
    bastion-quota-root     = var.quota_root
    bastion-package        = var.wheel
    bastion-package-sha256 = var.sha256
    bastion-extras         = "kubernetes"
    bastion-kubeconfig     = var.kubeconfig
    bastion-slices         = "cloud"
    bastion-unit           = file("${path.module}/../../../../bastion.service")
    bastion-firewall       = file("${path.module}/../../../../close-metadata.sh")
    startup-script         = file("${path.module}/../../../../startup.sh")
  }

  lifecycle {
    # A newer image of Debian is no reason for another VM.
    ignore_changes = [boot_disk[0].initialize_params[0].image]

    precondition {
      condition     = startswith(var.wheel, "${var.quota_root}/") && endswith(var.wheel, ".whl")
      error_message = "vm.wheel must be an object ${var.quota_root}/....whl: the daemon can read that folder of the private bucket, and nobody but administrators writes it."
    }
    precondition {
      condition     = can(regex("^[0-9a-f]{64}$", var.sha256))
      error_message = "vm.sha256 must be the 64 hexadecimal digits of `sha256sum NAME.whl`."
    }
  }
}

# `gcloud compute ssh --tunnel-through-iap` only.
resource "google_compute_firewall" "iap" {
  name          = "${var.name}-iap"
  network       = var.network
  direction     = "INGRESS"
  source_ranges = ["35.235.240.0/20"]

  target_service_accounts = [var.account]

  allow {
    protocol = "tcp"
    ports    = ["22"]
  }
}

# What the daemon calls for slices of Cloud TPU: deploy/roles/provisioner.yaml. Nodes have no policies of their own.
locals {
  provisioner = yamldecode(file("${path.module}/../../../../roles/provisioner.yaml"))
}

resource "google_project_iam_custom_role" "provisioner" {
  role_id     = "bastionProvisioner"
  title       = local.provisioner.title
  description = local.provisioner.description
  permissions = local.provisioner.includedPermissions
}

resource "google_project_iam_member" "provisioner" {
  project = var.project_id
  role    = google_project_iam_custom_role.provisioner.id
  member  = "serviceAccount:${var.account}"
}

# To connect to the API server; what the daemon may do there is the Role of `bastion kubernetes manifest`.
resource "google_project_iam_custom_role" "connect" {
  role_id     = "bastionConnect"
  title       = "Bastion connect"
  description = "Connects to API servers of clusters by their DNS names."
  permissions = ["container.clusters.connect"]
}

resource "google_project_iam_member" "cluster" {
  project = var.project_id
  role    = google_project_iam_custom_role.connect.id
  member  = "serviceAccount:${var.account}"
}
