output "releases" {
  description = "What is installed, with versions."
  value       = module.software.releases
}

output "objects" {
  description = "Kind and name of the objects that do not come from a chart: the bastion's and the queues."
  value       = module.software.objects
}
