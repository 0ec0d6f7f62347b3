# An environment to begin with: one slice v5e-16 on demand, two on spot machines, one-host slices, and GPUs of three kinds.
# Copy it to terraform.tfvars and change every name.
project_id     = "my-project"
region         = "us-central1"
cluster_name   = "training"
bastion_name   = "team-bastion"
bucket         = "my-team-bastion"
private_bucket = "my-team-bastion-admin"
users          = ["group:tpu-users@example.com"]
admins         = ["group:tpu-admins@example.com"]

labels = {
  team = "research"
}

data_buckets = {
  my-datasets = "read"
}

tpu_pools = {
  # bastion launch --instance_type=tpu-v5litepod-16
  v5e-16      = { type = "v5litepod-16", zone = "us-central1-a", hosts = 4 }
  v5e-16-spot = { type = "v5litepod-16", zone = "us-central1-a", hosts = 4, slices = 2, capacity = "spot" }
  v5e-8       = { type = "v5litepod-8", zone = "us-central1-a", hosts = 1, slices = 4, capacity = "spot", autoscaled = true }
  v5p-32      = { type = "v5p-32", zone = "us-central1-a", hosts = 4, capacity = "reservation", reservation = "team-v5p" }
  v6e-16      = { type = "v6e-16", zone = "us-central1-b", hosts = 4, capacity = "flex-start", max_run_duration = "86400s" }
  ironwood    = { type = "tpu7x-16", zone = "us-central1-c", hosts = 2, capacity = "reservation", reservation = "team-7x" }
}

gpu_pools = {
  # bastion launch --instance_type=gpu-l4-1
  l4        = { type = "gpu-l4-1", zone = "us-central1-a", nodes = 4, capacity = "spot", autoscaled = true }
  a100      = { type = "gpu-a100-8", zone = "us-central1-a", nodes = 2, compact = true }
  h100-mega = { type = "gpu-h100-mega-8", zone = "us-central1-a", nodes = 2, capacity = "reservation", reservation = "team-h100" }
  h200      = { type = "gpu-h200-8", zone = "us-central1-b", nodes = 2, capacity = "reservation", reservation = "team-h200" }
}
