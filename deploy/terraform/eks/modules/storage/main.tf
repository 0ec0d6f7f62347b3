# Where jobs find data: S3 buckets by a role of the jobs' pods, FSx for Lustre and EFS as volumes. No keys anywhere: the
# agent of EKS Pod Identity gives pods of one account of one namespace this role.

data "aws_iam_policy_document" "assume" {
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
  arn     = "arn:${data.aws_partition.this.partition}:s3:::"
  buckets = keys(var.data_buckets)
  written = [for name, access in var.data_buckets : name if access == "write"]
}

data "aws_iam_policy_document" "worker" {
  count = length(local.buckets) > 0 ? 1 : 0

  statement {
    actions   = ["s3:ListBucket"]
    resources = [for name in local.buckets : "${local.arn}${name}"]
  }

  statement {
    actions   = ["s3:GetObject"]
    resources = [for name in local.buckets : "${local.arn}${name}/*"]
  }

  dynamic "statement" {
    for_each = length(local.written) > 0 ? [1] : []
    content {
      actions   = ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:PutObject"]
      resources = [for name in local.written : "${local.arn}${name}/*"]
    }
  }
}

resource "aws_iam_role" "worker" {
  name               = "${var.name}-worker"
  assume_role_policy = data.aws_iam_policy_document.assume.json
}

resource "aws_iam_role_policy" "worker" {
  count = length(local.buckets) > 0 ? 1 : 0

  name   = "data-buckets"
  role   = aws_iam_role.worker.id
  policy = data.aws_iam_policy_document.worker[0].json
}

resource "aws_eks_pod_identity_association" "worker" {
  cluster_name    = var.cluster
  namespace       = var.namespace
  service_account = var.worker_account
  role_arn        = aws_iam_role.worker.arn
}

# FSx for Lustre

resource "aws_security_group" "storage" {
  # checkov:skip=CKV2_AWS_5: it is, by its key
  for_each = { for name, wanted in { lustre = var.lustre != null, efs = var.efs } : name => wanted if wanted }

  name        = "${var.name}-${each.key}"
  description = "${each.key} of ${var.name}, for its nodes"
  vpc_id      = var.vpc
}

locals {
  ports = {
    lustre-988  = { group = "lustre", from = 988, to = 988 }
    lustre-1018 = { group = "lustre", from = 1018, to = 1023 }
    efs-2049    = { group = "efs", from = 2049, to = 2049 }
  }
  # From the nodes; Lustre's servers talk to each other on the same ports.
  rules = merge([for port, spec in local.ports : {
    for client in concat(keys(var.clients), spec.group == "lustre" ? ["self"] : []) : "${port}-${client}" =>
    merge(spec, { client = client })
    if contains(keys(aws_security_group.storage), spec.group)
  }]...)
}

resource "aws_vpc_security_group_ingress_rule" "storage" {
  for_each = local.rules

  security_group_id            = aws_security_group.storage[each.value.group].id
  referenced_security_group_id = each.value.client == "self" ? aws_security_group.storage[each.value.group].id : var.clients[each.value.client]
  ip_protocol                  = "tcp"
  from_port                    = each.value.from
  to_port                      = each.value.to
  description                  = "${each.value.group} from ${each.value.client}"
}

resource "aws_vpc_security_group_egress_rule" "lustre" {
  for_each = { for name, port in local.ports : name => port if port.group == "lustre" && var.lustre != null }

  security_group_id            = aws_security_group.storage["lustre"].id
  referenced_security_group_id = aws_security_group.storage["lustre"].id
  ip_protocol                  = "tcp"
  from_port                    = each.value.from
  to_port                      = each.value.to
  description                  = "lustre among its servers"
}

resource "aws_fsx_lustre_file_system" "this" {
  count = var.lustre == null ? 0 : 1

  deployment_type                 = "PERSISTENT_2"
  file_system_type_version        = "2.15"
  storage_capacity                = var.lustre.size_gib
  per_unit_storage_throughput     = var.lustre.throughput
  data_compression_type           = "LZ4"
  automatic_backup_retention_days = 0 # what is in it is in S3, too
  kms_key_id                      = var.key
  subnet_ids                      = [try(var.subnets[var.lustre.zone], "none")]
  security_group_ids              = [aws_security_group.storage["lustre"].id]

  metadata_configuration {
    mode = "AUTOMATIC"
  }

  lifecycle {
    precondition {
      condition     = contains(keys(var.subnets), var.lustre.zone)
      error_message = "lustre: zone ${var.lustre.zone} is not one of zones."
    }
    precondition {
      condition     = var.lustre.size_gib == 1200 || (var.lustre.size_gib > 0 && var.lustre.size_gib % 2400 == 0)
      error_message = "lustre: size_gib must be 1200 or a multiple of 2400."
    }
    precondition {
      condition     = contains([125, 250, 500, 1000], var.lustre.throughput)
      error_message = "lustre: throughput must be 125, 250, 500 or 1000 MB/s for each TiB."
    }
  }
}

# What is in the bucket appears below /data, and what jobs write there goes back.
resource "aws_fsx_data_repository_association" "this" {
  count = try(var.lustre.bucket, null) == null ? 0 : 1

  file_system_id       = aws_fsx_lustre_file_system.this[0].id
  file_system_path     = "/data"
  data_repository_path = "s3://${var.lustre.bucket}"

  s3 {
    auto_import_policy {
      events = ["NEW", "CHANGED", "DELETED"]
    }

    auto_export_policy {
      events = ["NEW", "CHANGED", "DELETED"]
    }
  }

  lifecycle {
    precondition {
      condition     = try(var.data_buckets[var.lustre.bucket], "") == "write"
      error_message = "lustre: bucket ${var.lustre.bucket} must be in data_buckets with write: what jobs write below /data goes there."
    }
  }
}

# EFS

resource "aws_efs_file_system" "this" {
  count = var.efs ? 1 : 0

  encrypted       = true
  kms_key_id      = var.key
  throughput_mode = "elastic"
  tags            = { Name = var.name }

  lifecycle_policy {
    transition_to_ia = "AFTER_30_DAYS"
  }
}

resource "aws_efs_mount_target" "this" {
  for_each = var.efs ? var.subnets : {}

  file_system_id  = aws_efs_file_system.this[0].id
  subnet_id       = each.value
  security_groups = [aws_security_group.storage["efs"].id]
}
