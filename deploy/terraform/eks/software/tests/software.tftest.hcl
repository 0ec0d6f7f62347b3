# `terraform test`: plans with a stand-in of the provider, without a cluster.

mock_provider "helm" {}

variables {
  context   = "training"
  namespace = "bastion"
}

run "jobset_alone" {
  assert {
    condition     = output.releases == { jobset = "0.12.0", nvidia-device-plugin = "0.17.1", aws-efa-k8s-device-plugin = "v0.5.7" }
    error_message = jsonencode(output.releases)
  }
}

run "kueue" {
  variables {
    kueue = true
  }

  assert {
    condition     = output.releases == { jobset = "0.12.0", kueue = "0.19.2", nvidia-device-plugin = "0.17.1", aws-efa-k8s-device-plugin = "v0.5.7" }
    error_message = jsonencode(output.releases)
  }
}
