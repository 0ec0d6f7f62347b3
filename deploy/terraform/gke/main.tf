# The environment of a bastion on GKE. The order follows from the references: services, network, cluster, pools, and the
# bucket's grants last, because the identity pool of Kubernetes accounts exists only once there is a cluster.
# docs/how-to/create-the-environment.md has the steps.

# Read when Terraform plans, so it depends on nothing: a number "known after apply" would replace every grant.
data "google_project" "this" {
  project_id = var.project_id
}

resource "google_project_service" "enabled" {
  for_each = toset([
    "artifactregistry.googleapis.com",
    "cloudbuild.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "compute.googleapis.com",
    "container.googleapis.com",
    "iam.googleapis.com",
    "iamcredentials.googleapis.com",
    "logging.googleapis.com",
    "monitoring.googleapis.com",
    "storage.googleapis.com",
    "tpu.googleapis.com",
  ])

  project = var.project_id
  service = each.key
  # Other things in the project may use it.
  disable_on_destroy = false
}

module "network" {
  source = "./modules/network"

  name       = var.cluster_name
  region     = var.region
  ranges     = var.ranges
  depends_on = [google_project_service.enabled]
}

module "accelerator_networks" {
  source   = "./modules/accelerator_networks"
  for_each = local.accelerator_networks

  name       = "${var.cluster_name}-${each.key}"
  project_id = var.project_id
  region     = var.region
  zone       = each.value.zone
  kind       = each.key
  range      = each.value.range
  depends_on = [google_project_service.enabled]
}

module "cluster" {
  source = "./modules/cluster"

  name                = var.cluster_name
  project_id          = var.project_id
  region              = var.region
  network             = module.network.network
  subnetwork          = module.network.subnetwork
  pods_range_name     = module.network.pods_range_name
  services_range_name = module.network.services_range_name
  api_allowed_ranges  = var.api_allowed_ranges
  release_channel     = var.release_channel
  no_upgrades         = var.no_upgrades
  labels              = var.labels
  deletion_protection = var.deletion_protection
}

module "node_pools" {
  source = "./modules/node_pools"

  cluster         = module.cluster.id
  region          = var.region
  service_account = module.cluster.node_service_account
  cpu_pool        = var.cpu_pool
  tpu_pools       = var.tpu_pools
  tpu_types       = local.tpu_types
  gpu_pools       = var.gpu_pools
  gpu_types       = local.gpu_types
  networks        = { for name, network in module.accelerator_networks : name => network.interfaces }
}

module "registry" {
  source = "./modules/registry"

  name       = var.cluster_name
  project_id = var.project_id
  region     = var.region
  readers    = ["serviceAccount:${module.cluster.node_service_account}"]
  depends_on = [google_project_service.enabled]
}

module "bucket" {
  source = "../modules/bucket"

  project_id     = var.project_id
  region         = var.region
  bucket         = var.bucket
  private_bucket = var.private_bucket
  bastion_name   = var.bastion_name
  users          = var.users
  inboxes        = var.inboxes
  admins         = var.admins
  daemon         = local.daemon
  worker         = local.worker
  data_buckets   = var.data_buckets
  force_destroy  = !var.deletion_protection
  depends_on     = [google_project_service.enabled]
}

module "logs" {
  source = "./modules/logs"

  name       = var.cluster_name
  project_id = var.project_id
  region     = var.region
  namespace  = var.namespace
  days       = var.log_days
  depends_on = [google_project_service.enabled]
}

module "bastion_vm" {
  source = "./modules/bastion_vm"
  count  = var.bastion_in == "vm" ? 1 : 0

  name         = var.bastion_name
  project_id   = var.project_id
  subnetwork   = module.network.subnetwork
  network      = module.network.network
  zone         = var.vm.zone
  machine_type = var.vm.machine_type
  root         = module.bucket.root
  quota_root   = module.bucket.quota_root
  wheel        = var.vm.wheel
  sha256       = var.vm.sha256
  account      = google_service_account.bastion_vm[0].email
  kubeconfig   = module.cluster.kubeconfig
  allow_delete = !var.deletion_protection
}

resource "google_service_account" "bastion_vm" {
  count = var.bastion_in == "vm" ? 1 : 0

  account_id   = "${var.cluster_name}-daemon"
  display_name = "Bastion daemon"
  depends_on   = [google_project_service.enabled]
}

locals {
  # Kubernetes accounts as they are: no Google account that they impersonate, and no key.
  subject = "principal://iam.googleapis.com/projects/${data.google_project.this.number}/locations/global/workloadIdentityPools/${module.cluster.workload_pool}/subject/ns/${var.namespace}/sa"
  worker  = "${local.subject}/${var.worker_account}"
  daemon  = var.bastion_in == "vm" ? "serviceAccount:${google_service_account.bastion_vm[0].email}" : "${local.subject}/${var.bastion_name}"

  # One set of networks for each kind, named after the kind alone: another pool never renames it. Pools of one kind share
  # the set and so their zone (a precondition of node_pools).
  network_zones = {
    for pool in values(var.gpu_pools) : try(local.gpu_types[pool.type].networks, "none") => pool.zone...
  }
  accelerator_networks = {
    for kind, range in { tcpxo = "172.16.0.0/16", rdma = "172.17.0.0/16" } :
    kind => { zone = local.network_zones[kind][0], range = range } if contains(keys(local.network_zones), kind)
  }
}
