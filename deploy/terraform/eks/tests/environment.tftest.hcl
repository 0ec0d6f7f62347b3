# `terraform test -var-file=example.tfvars`: creates the example with stand-ins of the providers, without an account.

mock_provider "google" {
  mock_data "google_project" {
    defaults = { number = "123456789012" }
  }
}

mock_provider "aws" {
  mock_resource "aws_eks_cluster" {
    defaults = { identity = [{ oidc = [{ issuer = "https://oidc.eks.us-west-2.amazonaws.com/id/0123" }] }] }
  }
  mock_resource "aws_ecr_repository" {
    defaults = { repository_url = "123456789012.dkr.ecr.us-west-2.amazonaws.com/training" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_data "aws_iam_policy_document" {
    defaults = { json = "{}" }
  }
}

run "the_example" {
  assert {
    condition     = output.efa == { gpu-a100-8 = 4, gpu-h100-8 = 32 }
    error_message = jsonencode(output.efa)
  }
  assert {
    condition     = strcontains(output.settings, "[types.a100]") && strcontains(output.settings, "workloadIdentityPools/eks-training/providers/cluster")
    error_message = output.settings
  }
  assert {
    condition     = [for object in jsondecode(output.software).extra_manifests : "${object.kind} ${object.metadata.name}"] == ["PersistentVolume training-efs", "PersistentVolumeClaim efs", "PersistentVolume training-lustre", "PersistentVolumeClaim lustre"]
    error_message = output.software
  }
}

run "one_node_needs_no_efa" {
  command = plan

  variables {
    gpu_pools = { one = { instance_type = "p5.48xlarge", zone = "us-west-2a", nodes = 1 } }
    lustre    = null
    efs       = false
  }

  assert {
    condition     = output.efa == {}
    error_message = jsonencode(output.efa)
  }
}
