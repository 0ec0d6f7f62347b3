terraform {
  required_version = ">= 1.10, < 2.0" # the first whose S3 backend locks without DynamoDB

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.25"
    }
    google = {
      source  = "hashicorp/google"
      version = "~> 6.50"
    }
  }

  # `terraform init -backend-config=bucket=BUCKET -backend-config=key=bastion/eks -backend-config=region=REGION
  # -backend-config=use_lockfile=true`.
  backend "s3" {
    encrypt = true
  }
}

provider "aws" {
  region = var.region

  default_tags {
    tags = var.tags
  }
}

# The bastion's bucket is on Cloud Storage; see the module federation.
provider "google" {
  project = var.project_id
  region  = var.google_region
}
