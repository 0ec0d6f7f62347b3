# GPU pools, keyed by name. A pool is in one zone, and its hosts close together where they talk by EFA.

locals {
  pools = {
    for name, pool in var.pools : name => merge(pool, {
      known         = contains(keys(var.instance_types), pool.instance_type)
      network_cards = try(var.instance_types[pool.instance_type].network_cards, 1)
      efa           = pool.nodes > 1
    })
  }
  # A capacity block is placed by AWS.
  placed = { for name, pool in local.pools : name => pool if pool.efa && pool.capacity != "capacity-block" }
  market = { on-demand = "ON_DEMAND", spot = "SPOT", reservation = "ON_DEMAND", capacity-block = "CAPACITY_BLOCK" }
}

resource "aws_placement_group" "this" {
  for_each = local.placed

  name     = "${var.cluster}-${each.key}"
  strategy = "cluster"
}

# EFA wants a group that lets everything in from itself and out to itself; 0.0.0.0/0 is not enough for it.
resource "aws_security_group" "efa" {
  name        = "${var.cluster}-gpu"
  description = "GPU nodes of ${var.cluster}: EFA among themselves"
  vpc_id      = var.vpc
}

resource "aws_vpc_security_group_ingress_rule" "efa" {
  security_group_id            = aws_security_group.efa.id
  referenced_security_group_id = aws_security_group.efa.id
  ip_protocol                  = "-1"
  description                  = "EFA from the other GPU nodes"
}

resource "aws_vpc_security_group_egress_rule" "efa" {
  security_group_id            = aws_security_group.efa.id
  referenced_security_group_id = aws_security_group.efa.id
  ip_protocol                  = "-1"
  description                  = "EFA to the other GPU nodes"
}

resource "aws_launch_template" "gpu" {
  for_each = local.pools

  name_prefix            = "${var.cluster}-${each.key}-"
  update_default_version = true
  # A capacity block names the type here, all others in the node group.
  instance_type = each.value.capacity == "capacity-block" ? each.value.instance_type : null

  # The local NVMe disks of the host as one, below the containers' folders.
  user_data = base64encode(join("\n", [
    "MIME-Version: 1.0",
    "Content-Type: multipart/mixed; boundary=\"BOUNDARY\"",
    "",
    "--BOUNDARY",
    "Content-Type: application/node.eks.aws",
    "",
    yamlencode({
      apiVersion = "node.eks.aws/v1alpha1"
      kind       = "NodeConfig"
      spec       = { instance = { localStorage = { strategy = "RAID0" } } }
    }),
    "--BOUNDARY--",
    "",
  ]))

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      volume_size           = each.value.disk_size_gb
      volume_type           = "gp3"
      encrypted             = "true"
      kms_key_id            = var.key
      delete_on_termination = "true"
    }
  }

  # The first card carries IP, too; the others only EFA, so that they take no address of the subnet.
  dynamic "network_interfaces" {
    for_each = range(each.value.efa ? each.value.network_cards : 1)
    content {
      device_index                = network_interfaces.value == 0 ? 0 : 1
      network_card_index          = network_interfaces.value
      interface_type              = !each.value.efa ? null : network_interfaces.value == 0 ? "efa" : "efa-only"
      associate_public_ip_address = "false"
      delete_on_termination       = "true"
      security_groups             = [var.cluster_group, aws_security_group.efa.id]
    }
  }

  dynamic "placement" {
    for_each = contains(keys(local.placed), each.key) ? [1] : []
    content {
      group_name = aws_placement_group.this[each.key].name
    }
  }

  dynamic "instance_market_options" {
    for_each = each.value.capacity == "capacity-block" ? [1] : []
    content {
      market_type = "capacity-block"
    }
  }

  dynamic "capacity_reservation_specification" {
    for_each = each.value.reservation == null ? [] : [each.value.reservation]
    content {
      capacity_reservation_target {
        capacity_reservation_id = capacity_reservation_specification.value
      }
    }
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }
}

resource "aws_eks_node_group" "gpu" {
  for_each = local.pools

  cluster_name    = var.cluster
  node_group_name = each.key
  node_role_arn   = var.node_role
  subnet_ids      = [try(var.subnets[each.value.zone], "none")]
  ami_type        = "AL2023_x86_64_NVIDIA" # with NVIDIA's driver, and EFA's
  capacity_type   = try(local.market[each.value.capacity], null)
  instance_types  = each.value.capacity == "capacity-block" ? null : [each.value.instance_type]

  labels = merge(
    { "nvidia.com/gpu.present" = "true" },
    each.value.efa ? { "vpc.amazonaws.com/efa.present" = "true" } : {},
  )

  launch_template {
    id      = aws_launch_template.gpu[each.key].id
    version = aws_launch_template.gpu[each.key].latest_version
  }

  scaling_config {
    min_size     = 0
    max_size     = each.value.nodes
    desired_size = each.value.nodes
  }

  update_config {
    max_unavailable = 1
  }

  node_repair_config {
    enabled = true
  }

  taint {
    key    = "nvidia.com/gpu"
    value  = "present"
    effect = "NO_SCHEDULE"
  }

  lifecycle {
    precondition {
      condition     = each.value.known
      error_message = "gpu_pools: ${each.key}: ${each.value.instance_type} is not known; use one of ${join(", ", keys(var.instance_types))}."
    }
    precondition {
      condition     = each.value.nodes >= 1 && floor(each.value.nodes) == each.value.nodes
      error_message = "gpu_pools: ${each.key}: nodes must be a whole number, at least 1."
    }
    precondition {
      condition     = contains(keys(local.market), each.value.capacity)
      error_message = "gpu_pools: ${each.key}: capacity must be on-demand, spot, reservation or capacity-block."
    }
    precondition {
      condition     = contains(["reservation", "capacity-block"], each.value.capacity) == (each.value.reservation != null)
      error_message = "gpu_pools: ${each.key}: capacity = \"reservation\" or \"capacity-block\" and reservation = \"cr-...\" go together."
    }
    precondition {
      condition     = contains(keys(var.subnets), each.value.zone)
      error_message = "gpu_pools: ${each.key}: zone ${each.value.zone} is not one of zones."
    }
  }
}
