output "credentials" {
  description = "The command that brings the cluster's credentials into your kubeconfig."
  value       = "aws eks update-kubeconfig --region=${var.region} --name=${module.cluster.name} --alias=${module.cluster.name}"
}

output "root" {
  description = "The bastion's ROOT: `bastion config set root`."
  value       = module.bucket.root
}

output "quota_root" {
  description = "Where the quota file is: `bastion config set quota_root`, for administrators."
  value       = module.bucket.quota_root
}

output "repository" {
  description = "Where images go; `:TAG` follows."
  value       = module.registry.repository
}

output "manifest" {
  description = "The command that writes the daemon's objects for the second stage."
  value       = "bastion kubernetes manifest --output=json --provider=eks --root=${module.bucket.root} --quota_root=${module.bucket.quota_root} --namespace=${var.namespace} --service_account=${var.worker_account} --workload_identity_provider=${module.federation.provider_name} --image=${module.registry.repository}:bastion-v1 > bastion.json"
}

output "settings" {
  description = "The tables of the daemon's settings that follow from this environment. Tiers and images are yours to add."
  value = templatefile("${path.module}/../modules/settings.tftpl", {
    cluster        = var.cluster_name
    provider       = "eks"
    inside         = true
    namespace      = var.namespace
    account        = var.worker_account
    resource_types = module.node_groups.resource_types
    agent          = "${module.registry.repository}:bastion-v1"
    federation     = module.federation.provider_name
  })
}

output "efa" {
  description = "By resource type: `resources` of its pod settings, the EFA interfaces that a pod with all GPUs of a host takes."
  value       = module.node_groups.efa
}

output "software" {
  description = "What the second stage needs to know: `terraform output -raw software > software/from-eks.auto.tfvars.json`."
  value       = jsonencode({ namespace = var.namespace, extra_manifests = module.storage.manifests })
}
