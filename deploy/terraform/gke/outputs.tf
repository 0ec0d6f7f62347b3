output "credentials" {
  description = "The command that brings the cluster's credentials into your kubeconfig."
  value       = "gcloud container clusters get-credentials ${var.cluster_name} --project=${var.project_id} --location=${var.region} --dns-endpoint"
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
  description = "Where images go; `NAME:TAG` follows."
  value       = module.registry.repository
}

output "build" {
  description = "The command that builds the bastion's image with Cloud Build, in a checkout of this repository."
  value       = "gcloud builds submit --project=${var.project_id} --config=deploy/cloudbuild.yaml ${module.registry.build_flags} --substitutions=_IMAGE=${module.registry.repository}/bastion:v1 ."
}

output "manifest" {
  description = "The command that writes the daemon's objects for the second stage."
  value       = "bastion kubernetes manifest --output=json --provider=gke --root=${module.bucket.root} --quota_root=${module.bucket.quota_root} --namespace=${var.namespace} --service_account=${var.worker_account} --image=${module.registry.repository}/bastion:v1 > bastion.json"
}

output "settings" {
  description = "The tables of the daemon's settings that follow from this environment. Tiers and images are yours to add."
  value = templatefile("${path.module}/../modules/settings.tftpl", {
    cluster        = var.cluster_name
    provider       = "gke"
    inside         = var.bastion_in == "cluster"
    namespace      = var.namespace
    account        = var.worker_account
    resource_types = module.node_pools.resource_types
    agent          = ""
    federation     = ""
  })
}

output "software" {
  description = "What the second stage needs to know: `terraform output -raw software > software/from-gke.auto.tfvars.json`."
  value = jsonencode({
    namespace       = var.namespace
    bastion_in      = var.bastion_in
    daemon_user     = var.bastion_in == "vm" ? google_service_account.bastion_vm[0].email : ""
    extra_manifests = flatten([for network in module.accelerator_networks : network.manifests])
  })
}

output "pools" {
  description = "Each node pool with an accelerator: its machines, and how many nodes it has at most."
  value       = module.node_pools.pools
}
