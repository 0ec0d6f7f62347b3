# Pools of GPU nodes, keyed by name.

locals {
  gpu = {
    for name, pool in var.gpu_pools : name => merge(pool, {
      accelerator  = try(var.gpu_types[pool.type].accelerator, "unknown")
      machine_type = try(var.gpu_types[pool.type].machine_type, "unknown")
      gpus         = try(var.gpu_types[pool.type].gpus, 1)
      kind         = try(var.gpu_types[pool.type].networks, "none")
    })
  }
  # Compute Engine sells these only as spot and flex-start.
  gpu_parts = ["a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g"]
}

resource "google_container_node_pool" "gpu" {
  for_each = local.gpu

  name               = each.key
  cluster            = var.cluster
  node_locations     = [each.value.zone]
  node_count         = each.value.autoscaled || each.value.capacity == "flex-start" ? null : each.value.nodes
  initial_node_count = each.value.autoscaled || each.value.capacity == "flex-start" ? 0 : null

  dynamic "autoscaling" {
    for_each = each.value.autoscaled || each.value.capacity == "flex-start" ? [each.value.nodes] : []
    content {
      min_node_count  = 0
      max_node_count  = autoscaling.value
      location_policy = "ANY"
    }
  }

  dynamic "placement_policy" {
    for_each = each.value.compact ? [1] : []
    content {
      type = "COMPACT"
    }
  }

  management {
    auto_repair  = each.value.capacity != "flex-start"
    auto_upgrade = true
  }

  node_config {
    machine_type     = each.value.machine_type
    disk_size_gb     = each.value.disk_size_gb
    image_type       = "COS_CONTAINERD"
    service_account  = var.service_account
    oauth_scopes     = local.scopes
    spot             = each.value.capacity == "spot"
    flex_start       = each.value.capacity == "flex-start" ? true : null
    max_run_duration = each.value.capacity == "flex-start" ? each.value.max_run_duration : null

    guest_accelerator {
      type  = each.value.accelerator
      count = each.value.gpus

      # GKE installs the driver of the node's version: no DaemonSet.
      gpu_driver_installation_config {
        gpu_driver_version = "LATEST"
      }
    }

    gvnic {
      enabled = true
    }

    reservation_affinity {
      consume_reservation_type = each.value.capacity == "reservation" ? "SPECIFIC_RESERVATION" : "NO_RESERVATION"
      key                      = each.value.capacity == "reservation" ? "compute.googleapis.com/reservation-name" : null
      values                   = each.value.capacity == "reservation" ? [each.value.reservation] : null
    }

    dynamic "taint" {
      for_each = each.value.capacity == "spot" ? [1] : []
      content {
        key    = "cloud.google.com/gke-spot"
        value  = "true"
        effect = "NO_SCHEDULE"
      }
    }

    shielded_instance_config {
      enable_secure_boot          = true
      enable_integrity_monitoring = true
    }

    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }

  dynamic "network_config" {
    for_each = contains(keys(var.networks), each.value.kind) ? [var.networks[each.value.kind]] : []
    content {
      enable_private_nodes = true

      dynamic "additional_node_network_configs" {
        for_each = network_config.value
        content {
          network    = additional_node_network_configs.value.network
          subnetwork = additional_node_network_configs.value.subnetwork
        }
      }
    }
  }

  lifecycle {
    # GKE taints GPU nodes itself, the autoscaler changes the count, and machine types with local disks bring them along.
    ignore_changes = [
      initial_node_count,
      node_config[0].taint,
      node_config[0].ephemeral_storage_local_ssd_config,
    ]

    precondition {
      condition     = contains(keys(var.gpu_types), each.value.type)
      error_message = "gpu_pools: ${each.key}: ${each.value.type} is not a GPU type; use one of ${join(", ", keys(var.gpu_types))}."
    }
    precondition {
      condition     = each.value.nodes >= 1 && floor(each.value.nodes) == each.value.nodes
      error_message = "gpu_pools: ${each.key}: nodes must be a whole number, at least 1."
    }
    precondition {
      condition     = contains(["on-demand", "spot", "reservation", "flex-start"], each.value.capacity)
      error_message = "gpu_pools: ${each.key}: capacity must be on-demand, spot, reservation or flex-start."
    }
    precondition {
      condition     = !contains(local.gpu_parts, each.value.machine_type) || contains(["spot", "flex-start"], each.value.capacity)
      error_message = "gpu_pools: ${each.key}: ${each.value.machine_type} is sold as spot and flex-start only."
    }
    precondition {
      condition     = (each.value.capacity == "reservation") == (each.value.reservation != null)
      error_message = "gpu_pools: ${each.key}: capacity = \"reservation\" and reservation = NAME go together."
    }
    precondition {
      condition     = each.value.capacity == "flex-start" ? try(tonumber(trimsuffix(each.value.max_run_duration, "s")) <= 604800 && endswith(each.value.max_run_duration, "s"), false) : each.value.max_run_duration == null
      error_message = "gpu_pools: ${each.key}: capacity = \"flex-start\" and max_run_duration, at most \"604800s\", go together."
    }
    precondition {
      condition     = startswith(each.value.zone, "${var.region}-")
      error_message = "gpu_pools: ${each.key}: zone ${each.value.zone} is not in the cluster's region ${var.region}."
    }
    precondition {
      condition = each.value.kind == "none" || length(distinct(
        [for pool in values(local.gpu) : pool.zone if pool.kind == each.value.kind]
      )) == 1
      error_message = "gpu_pools: ${each.key}: all pools with accelerator networks of the kind ${each.value.kind} must be in one zone."
    }
  }
}
