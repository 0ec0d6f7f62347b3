# An environment to begin with: two p5 hosts of a capacity block, A100s on demand, and a Lustre file system over the data.
# Copy it to terraform.tfvars and change every name.
region             = "us-west-2"
cluster_name       = "training"
zones              = ["us-west-2a", "us-west-2b", "us-west-2c"]
api_allowed_ranges = ["203.0.113.0/24"]
project_id         = "my-project"
google_region      = "us-west1"
bastion_name       = "team-bastion"
bucket             = "my-team-bastion"
private_bucket     = "my-team-bastion-admin"
users              = ["group:gpu-users@example.com"]
admins             = ["group:gpu-admins@example.com"]

admin_roles = {
  platform = "arn:aws:iam::123456789012:role/platform"
}

data_buckets = {
  my-datasets = "read"
  my-training = "write"
}

gpu_pools = {
  # bastion launch --instance_type=gpu-h100-8
  p5  = { instance_type = "p5.48xlarge", zone = "us-west-2a", nodes = 2, capacity = "capacity-block", reservation = "cr-0123456789abcdef0" }
  p4d = { instance_type = "p4d.24xlarge", zone = "us-west-2b", nodes = 2 }
}

lustre = {
  zone   = "us-west-2a"
  bucket = "my-training"
}
efs = true
