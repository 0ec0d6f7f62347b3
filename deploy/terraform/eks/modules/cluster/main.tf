# The control plane, its add-ons, and the nodes without accelerators.

data "aws_iam_policy_document" "cluster" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["eks.amazonaws.com"]
    }
  }
}

data "aws_iam_policy_document" "node" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

# Roles that pods take by EKS Pod Identity.
data "aws_iam_policy_document" "pod" {
  statement {
    actions = ["sts:AssumeRole", "sts:TagSession"]

    principals {
      type        = "Service"
      identifiers = ["pods.eks.amazonaws.com"]
    }
  }
}

data "aws_partition" "this" {}

locals {
  policies = "arn:${data.aws_partition.this.partition}:iam::aws:policy"
  drivers = merge(
    var.efs ? { aws-efs-csi-driver = { account = "efs-csi-controller-sa", policy = "service-role/AmazonEFSCSIDriverPolicy" } } : {},
    var.lustre ? { aws-fsx-csi-driver = { account = "fsx-csi-controller-sa", policy = "AmazonFSxReadOnlyAccess" } } : {},
  )
}

resource "aws_iam_role" "cluster" {
  name               = "${var.name}-cluster"
  assume_role_policy = data.aws_iam_policy_document.cluster.json
}

resource "aws_iam_role_policy_attachment" "cluster" {
  role       = aws_iam_role.cluster.name
  policy_arn = "${local.policies}/AmazonEKSClusterPolicy"
}

# Nodes pull images and make their pods' addresses. Jobs have a role of their own.
resource "aws_iam_role" "node" {
  name               = "${var.name}-node"
  assume_role_policy = data.aws_iam_policy_document.node.json
}

resource "aws_iam_role_policy_attachment" "node" {
  for_each = toset(["AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly", "AmazonEKS_CNI_Policy"])

  role       = aws_iam_role.node.name
  policy_arn = "${local.policies}/${each.key}"
}

# EKS would create the group itself, with logs that stay for ever.
resource "aws_cloudwatch_log_group" "this" {
  name              = "/aws/eks/${var.name}/cluster"
  retention_in_days = var.log_days
  kms_key_id        = var.key
}

resource "aws_eks_cluster" "this" {
  # checkov:skip=CKV_AWS_39: with ranges of api_allowed_ranges only; the default is none
  name                          = var.name
  version                       = var.kubernetes_version
  role_arn                      = aws_iam_role.cluster.arn
  enabled_cluster_log_types     = ["api", "audit", "authenticator", "controllerManager", "scheduler"]
  bootstrap_self_managed_addons = false
  deletion_protection           = var.deletion_protection

  vpc_config {
    subnet_ids              = var.subnets
    endpoint_private_access = true
    endpoint_public_access  = length(var.api_allowed_ranges) > 0
    public_access_cidrs     = length(var.api_allowed_ranges) > 0 ? var.api_allowed_ranges : null
  }

  access_config {
    authentication_mode                         = "API"
    bootstrap_cluster_creator_admin_permissions = true
  }

  encryption_config {
    resources = ["secrets"]

    provider {
      key_arn = var.key
    }
  }

  upgrade_policy {
    support_type = "STANDARD"
  }

  depends_on = [aws_iam_role_policy_attachment.cluster, aws_cloudwatch_log_group.this]
}

resource "aws_eks_access_entry" "admin" {
  for_each = var.admin_roles

  cluster_name  = aws_eks_cluster.this.name
  principal_arn = each.value
}

resource "aws_eks_access_policy_association" "admin" {
  for_each = var.admin_roles

  cluster_name  = aws_eks_cluster.this.name
  principal_arn = aws_eks_access_entry.admin[each.key].principal_arn
  policy_arn    = "arn:${data.aws_partition.this.partition}:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"

  access_scope {
    type = "cluster"
  }
}

# Before the nodes: without the first a node never becomes ready.
resource "aws_eks_addon" "first" {
  for_each = toset(["vpc-cni", "kube-proxy", "eks-pod-identity-agent"])

  cluster_name                = aws_eks_cluster.this.name
  addon_name                  = each.key
  resolve_conflicts_on_create = "OVERWRITE"
  resolve_conflicts_on_update = "OVERWRITE"
}

resource "aws_launch_template" "cpu" {
  name_prefix            = "${var.name}-cpu-"
  update_default_version = true

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      volume_size           = var.cpu_nodes.disk_size_gb
      volume_type           = "gp3"
      encrypted             = "true"
      kms_key_id            = var.key
      delete_on_termination = "true"
    }
  }

  # One hop: pods do not reach the node's role.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }
}

resource "aws_eks_node_group" "cpu" {
  cluster_name    = aws_eks_cluster.this.name
  node_group_name = "cpu"
  node_role_arn   = aws_iam_role.node.arn
  subnet_ids      = var.subnets
  ami_type        = "AL2023_x86_64_STANDARD"
  instance_types  = [var.cpu_nodes.instance_type]

  launch_template {
    id      = aws_launch_template.cpu.id
    version = aws_launch_template.cpu.latest_version
  }

  scaling_config {
    min_size     = var.cpu_nodes.min_nodes
    max_size     = var.cpu_nodes.max_nodes
    desired_size = var.cpu_nodes.min_nodes
  }

  update_config {
    max_unavailable = 1
  }

  node_repair_config {
    enabled = true
  }

  lifecycle {
    ignore_changes = [scaling_config[0].desired_size]

    precondition {
      condition     = var.cpu_nodes.min_nodes >= 1 && var.cpu_nodes.max_nodes >= var.cpu_nodes.min_nodes
      error_message = "cpu_nodes: min_nodes must be at least 1, since the controllers run there, and max_nodes at least min_nodes."
    }
  }

  depends_on = [aws_iam_role_policy_attachment.node, aws_eks_addon.first]
}

# After the nodes: these run on them.
resource "aws_eks_addon" "coredns" {
  cluster_name = aws_eks_cluster.this.name
  addon_name   = "coredns"
  depends_on   = [aws_eks_node_group.cpu]
}

resource "aws_iam_role" "driver" {
  for_each = local.drivers

  name               = "${var.name}-${each.key}"
  assume_role_policy = data.aws_iam_policy_document.pod.json
}

resource "aws_iam_role_policy_attachment" "driver" {
  for_each = local.drivers

  role       = aws_iam_role.driver[each.key].name
  policy_arn = "${local.policies}/${each.value.policy}"
}

resource "aws_eks_addon" "driver" {
  for_each = local.drivers

  cluster_name = aws_eks_cluster.this.name
  addon_name   = each.key

  pod_identity_association {
    role_arn        = aws_iam_role.driver[each.key].arn
    service_account = each.value.account
  }

  depends_on = [aws_eks_node_group.cpu, aws_iam_role_policy_attachment.driver]
}
