locals {
  by_type = { for pool in values(local.pools) : var.instance_types[pool.instance_type].type => pool... if pool.known }
}

output "resource_types" {
  description = "The resource types of these pools, as the daemon's settings name them."
  value       = sort(distinct([for type in keys(local.by_type) : regex("^gpu-(.*)-[0-9]+$", type)[0]]))
}

output "efa" {
  description = "By type: EFA interfaces of a host."
  value       = { for type, pools in local.by_type : type => pools[0].network_cards if anytrue(pools[*].efa) }
}

output "security_groups" {
  description = "The groups of the nodes, by a fixed name."
  value       = { cluster = var.cluster_group, gpu = aws_security_group.efa.id }
}
