# `terraform test`: plans with a stand-in of the provider, without a cluster.

mock_provider "helm" {}

variables {
  context   = "gke_my-project_us-central1_training"
  namespace = "bastion"
}

run "jobset_alone" {
  assert {
    condition     = output.releases == { jobset = "0.12.0" }
    error_message = jsonencode(output.releases)
  }
}

run "kueue" {
  variables {
    kueue = true
  }

  assert {
    condition     = output.releases == { jobset = "0.12.0", kueue = "0.19.2" }
    error_message = jsonencode(output.releases)
  }
}
