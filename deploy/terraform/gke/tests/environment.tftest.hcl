# `terraform test -var-file=example.tfvars`: creates the example with a stand-in of the provider, without an account.

mock_provider "google" {
  mock_resource "google_container_cluster" {
    defaults = {
      id                             = "projects/my-project/locations/us-central1/clusters/training"
      control_plane_endpoints_config = { dns_endpoint_config = { endpoint = "gke-1.us-central1.gke.goog" } }
    }
  }
  mock_resource "google_service_account" {
    defaults = { email = "training-nodes@my-project.iam.gserviceaccount.com" }
  }
  mock_resource "google_artifact_registry_repository" {
    defaults = { project = "my-project" }
  }
  mock_data "google_project" {
    defaults = { number = "123456789012" }
  }
}

run "the_example" {
  assert {
    condition = { for name, pool in output.pools : name => "${pool.nodes} ${pool.machine_type} ${pool.accelerator}" } == {
      ironwood-0    = "2 tpu7x-standard-4t tpu7x 2x2x2"
      v5e-16-0      = "4 ct5lp-hightpu-4t tpu-v5-lite-podslice 4x4"
      v5e-16-spot-0 = "4 ct5lp-hightpu-4t tpu-v5-lite-podslice 4x4"
      v5e-16-spot-1 = "4 ct5lp-hightpu-4t tpu-v5-lite-podslice 4x4"
      v5e-8         = "4 ct5lp-hightpu-8t tpu-v5-lite-podslice 2x4"
      v5p-32-0      = "4 ct5p-hightpu-4t tpu-v5p-slice 2x2x4"
      v6e-16-0      = "4 ct6e-standard-4t tpu-v6e-slice 4x4"
      a100          = "2 a2-highgpu-8g nvidia-tesla-a100"
      h100-mega     = "2 a3-megagpu-8g nvidia-h100-mega-80gb"
      h200          = "2 a3-ultragpu-8g nvidia-h200-141gb"
      l4            = "4 g2-standard-12 nvidia-l4"
    }
    error_message = jsonencode(output.pools)
  }
  assert {
    condition     = output.root == "gs://my-team-bastion/team-bastion"
    error_message = output.root
  }
  assert {
    # 8 networks of H100 Mega, and 1 + 8 of H200: two objects each.
    condition     = length(jsondecode(output.software).extra_manifests) == 2 * (8 + 9)
    error_message = output.software
  }
  assert {
    condition     = strcontains(output.settings, "[types.v5litepod]") && strcontains(output.settings, "[types.h100-mega]")
    error_message = output.settings
  }
}

run "one_more_pool_changes_no_other" {
  command = plan

  variables {
    tpu_pools = {
      a-first = { type = "v4-8", zone = "us-central1-a", hosts = 1 }
      v5e-16  = { type = "v5litepod-16", zone = "us-central1-a", hosts = 4, slices = 2 }
    }
  }

  assert {
    condition     = output.pools["v5e-16-0"] == run.the_example.pools["v5e-16-0"]
    error_message = "the pool that was there is to stay as it is"
  }
}

run "the_daemon_on_a_vm" {
  variables {
    bastion_in = "vm"
    vm = {
      zone   = "us-central1-a"
      wheel  = "gs://my-team-bastion-admin/team-bastion/releases/bastion-0.1.0-py3-none-any.whl"
      sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
    }
  }

  assert {
    condition     = jsondecode(output.software).daemon_user == "training-nodes@my-project.iam.gserviceaccount.com"
    error_message = output.software
  }
  assert {
    condition     = strcontains(output.settings, "kubeconfig = \"/etc/bastion/kubeconfig\"")
    error_message = output.settings
  }
}
