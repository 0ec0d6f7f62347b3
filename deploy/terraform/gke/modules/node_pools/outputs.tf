output "resource_types" {
  description = "The resource types of these pools, as the daemon's settings name them."
  value = sort(distinct(concat(
    [for pool in values(var.tpu_pools) : regex("^(.*)-[0-9]+$", pool.type)[0]],
    [for pool in values(var.gpu_pools) : regex("^gpu-(.*)-[0-9]+$", pool.type)[0]],
  )))
}

output "pools" {
  description = "Each node pool with an accelerator: its machines, and how many nodes it has at most."
  value = merge(
    {
      for name, pool in google_container_node_pool.tpu : name => {
        machine_type = pool.node_config[0].machine_type
        accelerator  = "${local.tpu[name].accelerator} ${local.tpu[name].topology}"
        nodes        = local.tpu[name].nodes
      }
    },
    {
      for name, pool in google_container_node_pool.gpu : name => {
        machine_type = pool.node_config[0].machine_type
        accelerator  = local.gpu[name].accelerator
        nodes        = local.gpu[name].nodes
      }
    },
  )
}
