terraform {
  required_version = ">= 1.9, < 2.0"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 6.50"
    }
  }

  # `terraform init -backend-config=bucket=BUCKET -backend-config=prefix=bastion/gke`: who applies next has the same state.
  backend "gcs" {}
}

provider "google" {
  project        = var.project_id
  region         = var.region
  default_labels = var.labels
}
