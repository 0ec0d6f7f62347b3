# Pools of TPU slices, keyed by name: another pool in the map changes no pool that exists.

locals {
  # A multi-host slice is a pool of its own, NAME-0, NAME-1 and so on; one-host slices are nodes of one pool.
  tpu_slices = merge([
    for name, pool in var.tpu_pools : {
      for index in range(pool.hosts == 1 ? 1 : pool.slices) : (pool.hosts == 1 ? name : "${name}-${index}") =>
      merge(pool, { nodes = pool.hosts == 1 ? pool.slices : pool.hosts })
    }
  ]...)

  # The label that GKE gives the nodes of a machine type, by the beginning of its name.
  tpu_accelerators = {
    ct4p  = "tpu-v4-podslice"
    ct5lp = "tpu-v5-lite-podslice"
    ct5p  = "tpu-v5p-slice"
    ct6e  = "tpu-v6e-slice"
    tpu7x = "tpu7x"
  }

  tpu = {
    for name, pool in local.tpu_slices : name => merge(pool, {
      accelerator  = try(var.tpu_types[pool.type].accelerator, "unknown")
      machine_type = coalesce(pool.machine_type, try(var.tpu_types[pool.type].machine_type, "unknown"))
      topology     = coalesce(pool.topology, try(var.tpu_types[pool.type].topology, "unknown"))
      type_hosts   = try(var.tpu_types[pool.type].hosts, 0)
    })
  }

  # Chips of the topology, and of one machine: ct5lp-hightpu-4t has 4.
  tpu_chips = {
    for name, pool in local.tpu : name => {
      slice = try(
        tonumber(split("x", pool.topology)[0]) * tonumber(split("x", pool.topology)[1]) *
        tonumber(try(split("x", pool.topology)[2], "1")), 0
      )
      machine = try(tonumber(regex("-([0-9]+)t$", pool.machine_type)[0]), 1)
    }
  }

  # Ironwood's multi-host slices are placed by a workload policy, the others by the pool's own topology.
  tpu_policies = { for name, pool in local.tpu : name => pool if pool.accelerator == "tpu7x" && pool.hosts > 1 }
}

resource "google_compute_resource_policy" "tpu7x" {
  for_each = local.tpu_policies

  name   = each.key
  region = var.region

  workload_policy {
    type                 = "HIGH_THROUGHPUT"
    accelerator_topology = each.value.topology
  }
}

resource "google_container_node_pool" "tpu" {
  for_each = local.tpu

  name           = each.key
  cluster        = var.cluster
  node_locations = [each.value.zone]
  # The autoscaler sets it where there is one.
  node_count         = each.value.autoscaled || each.value.capacity == "flex-start" ? null : each.value.nodes
  initial_node_count = each.value.autoscaled || each.value.capacity == "flex-start" ? 0 : null

  dynamic "autoscaling" {
    for_each = each.value.autoscaled || each.value.capacity == "flex-start" ? [each.value.nodes] : []
    content {
      # Nodes of a multi-host slice come and go together.
      min_node_count  = 0
      max_node_count  = autoscaling.value
      location_policy = "ANY"
    }
  }

  dynamic "placement_policy" {
    for_each = each.value.hosts > 1 ? [1] : []
    content {
      type         = "COMPACT"
      tpu_topology = contains(keys(local.tpu_policies), each.key) ? null : each.value.topology
      policy_name  = contains(keys(local.tpu_policies), each.key) ? google_compute_resource_policy.tpu7x[each.key].name : null
    }
  }

  management {
    auto_repair  = each.value.capacity != "flex-start" # GKE refuses it there
    auto_upgrade = true
  }

  node_config {
    machine_type     = each.value.machine_type
    disk_size_gb     = each.value.disk_size_gb
    disk_type        = each.value.accelerator == "tpu7x" ? "hyperdisk-balanced" : null
    image_type       = "COS_CONTAINERD"
    service_account  = var.service_account
    oauth_scopes     = local.scopes
    spot             = each.value.capacity == "spot"
    flex_start       = each.value.capacity == "flex-start" ? true : null
    max_run_duration = each.value.capacity == "flex-start" ? each.value.max_run_duration : null

    reservation_affinity {
      consume_reservation_type = each.value.capacity == "reservation" ? "SPECIFIC_RESERVATION" : "NO_RESERVATION"
      key                      = each.value.capacity == "reservation" ? "compute.googleapis.com/reservation-name" : null
      values                   = each.value.capacity == "reservation" ? [each.value.reservation] : null
    }

    # Keeps jobs on demand off nodes that may go at any time.
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

  lifecycle {
    # GKE taints TPU nodes itself, and the autoscaler changes the count.
    ignore_changes = [initial_node_count, node_config[0].taint]

    precondition {
      condition     = contains(keys(var.tpu_types), each.value.type)
      error_message = "tpu_pools: ${each.key}: ${each.value.type} is not a TPU type on GKE; see `bastion instance-types`, without tpu-."
    }
    precondition {
      condition     = try(local.tpu_accelerators[split("-", each.value.machine_type)[0]], "") == each.value.accelerator
      error_message = "tpu_pools: ${each.key}: ${each.value.machine_type} has no ${each.value.accelerator}, which ${each.value.type} needs."
    }
    precondition {
      condition     = local.tpu_chips[each.key].slice == each.value.hosts * local.tpu_chips[each.key].machine
      error_message = "tpu_pools: ${each.key}: topology ${each.value.topology} has ${local.tpu_chips[each.key].slice} chips, but ${each.value.hosts} hosts ${each.value.machine_type} have ${each.value.hosts * local.tpu_chips[each.key].machine}; set hosts = ${local.tpu_chips[each.key].slice / local.tpu_chips[each.key].machine}."
    }
    precondition {
      condition     = each.value.hosts == each.value.type_hosts
      error_message = "tpu_pools: ${each.key}: a slice ${each.value.type} has ${each.value.type_hosts} hosts, not ${each.value.hosts}: jobs of that type would never fit."
    }
    precondition {
      condition     = contains(["on-demand", "spot", "reservation", "flex-start"], each.value.capacity)
      error_message = "tpu_pools: ${each.key}: capacity must be on-demand, spot, reservation or flex-start."
    }
    precondition {
      condition     = (each.value.capacity == "reservation") == (each.value.reservation != null)
      error_message = "tpu_pools: ${each.key}: capacity = \"reservation\" and reservation = NAME go together."
    }
    precondition {
      condition     = each.value.capacity == "flex-start" ? try(tonumber(trimsuffix(each.value.max_run_duration, "s")) <= 604800 && endswith(each.value.max_run_duration, "s"), false) : each.value.max_run_duration == null
      error_message = "tpu_pools: ${each.key}: capacity = \"flex-start\" and max_run_duration, at most \"604800s\", go together."
    }
    precondition {
      condition     = startswith(each.value.zone, "${var.region}-")
      error_message = "tpu_pools: ${each.key}: zone ${each.value.zone} is not in the cluster's region ${var.region}."
    }
  }
}
