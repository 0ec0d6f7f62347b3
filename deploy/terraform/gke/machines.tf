# What each type is made of. TPUs: the table of the package itself, so that both always agree. GPUs: Compute Engine's documentation of
# GPU machine types.

locals {
  tpu_types = {
    for row in csvdecode(file("${path.module}/../../../bastion/core/model/accelerators.csv")) : row.accelerator_type => {
      accelerator    = row.gke_accelerator
      machine_type   = row.gke_machine_type
      topology       = row.topology
      chips_per_host = tonumber(row.chips_per_host)
      hosts          = tonumber(row.hosts)
    } if can(regex("^tpu[a-z0-9-]*$", row.gke_accelerator)) # v2 and v3 are not used on GKE
  }

  # networks: none; tcpxo: 8 VPCs; rdma: one VPC for the host and one with 8 subnets for the GPUs.
  gpu_types = {
    gpu-a100-1      = { accelerator = "nvidia-tesla-a100", machine_type = "a2-highgpu-1g", gpus = 1, networks = "none" }
    gpu-a100-2      = { accelerator = "nvidia-tesla-a100", machine_type = "a2-highgpu-2g", gpus = 2, networks = "none" }
    gpu-a100-4      = { accelerator = "nvidia-tesla-a100", machine_type = "a2-highgpu-4g", gpus = 4, networks = "none" }
    gpu-a100-8      = { accelerator = "nvidia-tesla-a100", machine_type = "a2-highgpu-8g", gpus = 8, networks = "none" }
    gpu-a100-80gb-1 = { accelerator = "nvidia-a100-80gb", machine_type = "a2-ultragpu-1g", gpus = 1, networks = "none" }
    gpu-a100-80gb-2 = { accelerator = "nvidia-a100-80gb", machine_type = "a2-ultragpu-2g", gpus = 2, networks = "none" }
    gpu-a100-80gb-4 = { accelerator = "nvidia-a100-80gb", machine_type = "a2-ultragpu-4g", gpus = 4, networks = "none" }
    gpu-a100-80gb-8 = { accelerator = "nvidia-a100-80gb", machine_type = "a2-ultragpu-8g", gpus = 8, networks = "none" }
    gpu-l4-1        = { accelerator = "nvidia-l4", machine_type = "g2-standard-12", gpus = 1, networks = "none" }
    gpu-l4-2        = { accelerator = "nvidia-l4", machine_type = "g2-standard-24", gpus = 2, networks = "none" }
    gpu-l4-4        = { accelerator = "nvidia-l4", machine_type = "g2-standard-48", gpus = 4, networks = "none" }
    gpu-l4-8        = { accelerator = "nvidia-l4", machine_type = "g2-standard-96", gpus = 8, networks = "none" }
    gpu-h100-1      = { accelerator = "nvidia-h100-80gb", machine_type = "a3-highgpu-1g", gpus = 1, networks = "none" }
    gpu-h100-2      = { accelerator = "nvidia-h100-80gb", machine_type = "a3-highgpu-2g", gpus = 2, networks = "none" }
    gpu-h100-4      = { accelerator = "nvidia-h100-80gb", machine_type = "a3-highgpu-4g", gpus = 4, networks = "none" }
    gpu-h100-8      = { accelerator = "nvidia-h100-80gb", machine_type = "a3-highgpu-8g", gpus = 8, networks = "none" }
    gpu-h100-mega-8 = { accelerator = "nvidia-h100-mega-80gb", machine_type = "a3-megagpu-8g", gpus = 8, networks = "tcpxo" }
    gpu-h200-8      = { accelerator = "nvidia-h200-141gb", machine_type = "a3-ultragpu-8g", gpus = 8, networks = "rdma" }
    gpu-b200-8      = { accelerator = "nvidia-b200", machine_type = "a4-highgpu-8g", gpus = 8, networks = "rdma" }
  }
}
