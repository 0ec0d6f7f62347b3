# The environment of a bastion on EKS. docs/how-to/create-the-environment.md has the steps.

module "network" {
  source = "./modules/network"

  name     = var.cluster_name
  range    = var.vpc_range
  zones    = var.zones
  region   = var.region
  log_days = var.log_days
  key      = aws_kms_key.this.arn
}

# One key for the cluster's secrets, disks, file systems, images and logs.
resource "aws_kms_key" "this" {
  description             = "Bastion's environment ${var.cluster_name}"
  enable_key_rotation     = true
  deletion_window_in_days = 7
  policy                  = data.aws_iam_policy_document.key.json
}

data "aws_caller_identity" "this" {}

data "aws_partition" "this" {}

# The account's IAM policies decide about the key, and CloudWatch may encrypt the log groups of this cluster with it.
data "aws_iam_policy_document" "key" {
  # checkov:skip=CKV_AWS_109: the account's own IAM policies decide, which AWS's default policy of keys says with these words
  # checkov:skip=CKV_AWS_111: likewise
  # checkov:skip=CKV_AWS_356: in a policy of a key, * is that key
  statement {
    actions   = ["kms:*"]
    resources = ["*"]

    principals {
      type        = "AWS"
      identifiers = ["arn:${data.aws_partition.this.partition}:iam::${data.aws_caller_identity.this.account_id}:root"]
    }
  }

  statement {
    actions   = ["kms:Decrypt", "kms:Describe*", "kms:Encrypt", "kms:GenerateDataKey*", "kms:ReEncrypt*"]
    resources = ["*"]

    principals {
      type        = "Service"
      identifiers = ["logs.${var.region}.amazonaws.com"]
    }

    condition {
      test     = "ArnLike"
      variable = "kms:EncryptionContext:aws:logs:arn"
      values   = ["arn:${data.aws_partition.this.partition}:logs:${var.region}:${data.aws_caller_identity.this.account_id}:log-group:*${var.cluster_name}*"]
    }
  }

  # The group of instances that a node group makes, for the nodes' disks.
  statement {
    actions   = ["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey*", "kms:ReEncrypt*", "kms:CreateGrant"]
    resources = ["*"]

    principals {
      type = "AWS"
      identifiers = [
        "arn:${data.aws_partition.this.partition}:iam::${data.aws_caller_identity.this.account_id}:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling",
      ]
    }
  }
}

module "cluster" {
  source = "./modules/cluster"

  name                = var.cluster_name
  kubernetes_version  = var.kubernetes_version
  subnets             = values(module.network.private_subnets)
  api_allowed_ranges  = var.api_allowed_ranges
  admin_roles         = var.admin_roles
  key                 = aws_kms_key.this.arn
  log_days            = var.log_days
  lustre              = var.lustre != null
  efs                 = var.efs
  deletion_protection = var.deletion_protection

  cpu_nodes = var.cpu_nodes
}

module "node_groups" {
  source = "./modules/node_groups"

  cluster        = module.cluster.name
  node_role      = module.cluster.node_role
  cluster_group  = module.cluster.security_group
  vpc            = module.network.vpc
  subnets        = module.network.private_subnets
  key            = aws_kms_key.this.arn
  pools          = var.gpu_pools
  instance_types = local.instance_types
}

module "storage" {
  source = "./modules/storage"

  name           = var.cluster_name
  cluster        = module.cluster.name
  vpc            = module.network.vpc
  subnets        = module.network.private_subnets
  clients        = module.node_groups.security_groups
  key            = aws_kms_key.this.arn
  namespace      = var.namespace
  worker_account = var.worker_account
  data_buckets   = var.data_buckets
  lustre         = var.lustre
  efs            = var.efs
}

module "registry" {
  source = "./modules/registry"

  name         = var.cluster_name
  key          = aws_kms_key.this.arn
  force_delete = !var.deletion_protection
}

module "federation" {
  source = "./modules/federation"

  name       = var.cluster_name
  project_id = var.project_id
  issuer     = module.cluster.issuer
  namespace  = var.namespace
}

module "bucket" {
  source = "../modules/bucket"

  project_id     = var.project_id
  region         = var.google_region
  bucket         = var.bucket
  private_bucket = var.private_bucket
  bastion_name   = var.bastion_name
  users          = var.users
  inboxes        = var.inboxes
  admins         = var.admins
  daemon         = "${module.federation.principal}:${var.namespace}:${var.bastion_name}"
  worker         = "${module.federation.principal}:${var.namespace}:${var.worker_account}"
  data_buckets   = {}
  force_destroy  = !var.deletion_protection
}
