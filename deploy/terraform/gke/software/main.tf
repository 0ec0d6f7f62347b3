# The second stage: what runs in the cluster that the first stage has made. A state of its own, so that the provider's
# credentials never depend on a cluster that the same run creates or destroys.

module "software" {
  source = "../../modules/software"

  provider_name      = "gke"
  namespace          = var.namespace
  bastion_file       = var.bastion_file
  bastion_in         = var.bastion_in
  daemon_user        = var.daemon_user
  queues_file        = var.queues_file
  extra_manifests    = var.extra_manifests
  kueue              = var.kueue
  jobset_version     = var.jobset_version
  kueue_version      = var.kueue_version
  pods_ready_timeout = var.pods_ready_timeout
}
