# Where images are kept. The nodes' account may read this repository, not the project's others.

resource "google_artifact_registry_repository" "this" {
  # checkov:skip=CKV_GCP_84: Google's keys encrypt it; add kms_key_name if your organization wants its own
  repository_id = var.name
  location      = var.region
  format        = "DOCKER"
  description   = "Images of the bastion and of jobs"

  docker_config {
    immutable_tags = true
  }

  cleanup_policies {
    id     = "untagged"
    action = "DELETE"

    condition {
      tag_state  = "UNTAGGED"
      older_than = "604800s"
    }
  }
}

resource "google_artifact_registry_repository_iam_member" "readers" {
  for_each = { for index, member in var.readers : tostring(index) => member }

  location   = google_artifact_registry_repository.this.location
  repository = google_artifact_registry_repository.this.name
  role       = "roles/artifactregistry.reader"
  member     = each.value
}

# Cloud Build's account: it reads the sources that `gcloud builds submit` uploads, and pushes to this repository.
resource "google_service_account" "build" {
  account_id   = "${var.name}-build"
  display_name = "Builds of images"
}

resource "google_artifact_registry_repository_iam_member" "build" {
  location   = google_artifact_registry_repository.this.location
  repository = google_artifact_registry_repository.this.name
  role       = "roles/artifactregistry.writer"
  member     = "serviceAccount:${google_service_account.build.email}"
}

resource "google_project_iam_member" "build_logs" {
  project = var.project_id
  role    = "roles/logging.logWriter"
  member  = "serviceAccount:${google_service_account.build.email}"
}

resource "google_storage_bucket" "sources" {
  # checkov:skip=CKV_GCP_62: uploads of sources, for a week
  # checkov:skip=CKV_GCP_78: likewise
  name                        = "${var.project_id}-${var.name}-build"
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = true

  lifecycle_rule {
    action {
      type = "Delete"
    }
    condition {
      age = 7
    }
  }
}

resource "google_storage_bucket_iam_member" "sources" {
  bucket = google_storage_bucket.sources.name
  role   = "roles/storage.objectViewer"
  member = "serviceAccount:${google_service_account.build.email}"
}
