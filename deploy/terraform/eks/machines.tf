# GPUs and network cards of EC2's accelerated computing instances, from EC2's documentation. One host has all the GPUs of a
# type `gpu-NAME-N` of Bastion. p3 (V100) is left out: NVIDIA's current drivers have ended its support.

locals {
  instance_types = {
    "p4d.24xlarge"     = { type = "gpu-a100-8", gpus = 8, network_cards = 4 }
    "p4de.24xlarge"    = { type = "gpu-a100-80gb-8", gpus = 8, network_cards = 4 }
    "p5.4xlarge"       = { type = "gpu-h100-1", gpus = 1, network_cards = 1 }
    "p5.48xlarge"      = { type = "gpu-h100-8", gpus = 8, network_cards = 32 }
    "p5e.48xlarge"     = { type = "gpu-h200-8", gpus = 8, network_cards = 32 }
    "p5en.48xlarge"    = { type = "gpu-h200-8", gpus = 8, network_cards = 16 }
    "p6-b200.48xlarge" = { type = "gpu-b200-8", gpus = 8, network_cards = 8 }
  }
}
