output "releases" {
  description = "The releases and their versions."
  value = merge(
    { jobset = helm_release.jobset.version },
    { for release in helm_release.kueue : release.name => release.version },
    { for release in concat(helm_release.nvidia_device_plugin, helm_release.efa_device_plugin) : release.name => release.version },
  )
}

output "objects" {
  description = "Kind and name of the objects that do not come from a chart: the bastion's and the queues."
  value = {
    bastion = [for object in concat(local.in_cluster, local.vm_bindings) : "${object.kind} ${object.metadata.name}"]
    queues  = [for object in local.queues : "${object.kind} ${object.metadata.name}"]
  }
}
