# The networks of GPU hosts besides the cluster's own, after GKE's pages on maximizing GPU network bandwidth: for H100 Mega
# (tcpxo) a VPC for each of 8 GPUs; for H200 and B200 (rdma) a VPC for the host's second interface, and one with the
# zone's RoCE profile and a subnet for each GPU. Pods choose them by the Network objects of `manifests`.

locals {
  rdma    = var.kind == "rdma"
  gpus    = 8
  vpcs    = local.rdma ? ["gvnic-1"] : [for number in range(1, local.gpus + 1) : "vpc${number}"]
  subnets = [for index in range(16) : cidrsubnet(var.range, 4, index)]
}

resource "google_compute_network" "vpc" {
  for_each = toset(local.vpcs)

  name                    = "${var.name}-${each.key}"
  auto_create_subnetworks = false
  mtu                     = 8244
}

resource "google_compute_subnetwork" "vpc" {
  # checkov:skip=CKV_GCP_26: GPUs of one job among themselves, at their full rate
  for_each = { for index, name in local.vpcs : name => local.subnets[index] }

  name                     = "${var.name}-${each.key}"
  region                   = var.region
  network                  = google_compute_network.vpc[each.key].id
  ip_cidr_range            = each.value
  private_ip_google_access = true
}

# GPUs of one job talk to each other on any port; nothing else is in these VPCs.
resource "google_compute_firewall" "vpc" {
  for_each = google_compute_network.vpc

  name          = "${each.value.name}-internal"
  network       = each.value.id
  direction     = "INGRESS"
  source_ranges = [var.range]

  allow {
    protocol = "all"
  }
}

resource "google_compute_network" "rdma" {
  # checkov:skip=CKV2_GCP_18: networks with the RoCE profile take no such rules
  count = local.rdma ? 1 : 0

  name                    = "${var.name}-rdma"
  auto_create_subnetworks = false
  mtu                     = 8896
  network_profile         = "https://www.googleapis.com/compute/v1/projects/${var.project_id}/global/networkProfiles/${var.zone}-vpc-roce"
}

resource "google_compute_subnetwork" "rdma" {
  # checkov:skip=CKV_GCP_26: the RoCE profile has no flow logs
  # checkov:skip=CKV_GCP_74: nothing but the GPUs' own traffic
  for_each = local.rdma ? { for index in range(local.gpus) : "rdma-${index}" => local.subnets[index + 1] } : {}

  name          = "${var.name}-${each.key}"
  region        = var.region
  network       = google_compute_network.rdma[0].id
  ip_cidr_range = each.value
}

locals {
  interfaces = concat(
    [for name in local.vpcs : {
      name       = name
      network    = google_compute_network.vpc[name].name
      subnetwork = google_compute_subnetwork.vpc[name].name
      mode       = "NetDevice"
    }],
    [for index in range(local.rdma ? local.gpus : 0) : {
      name       = "rdma-${index}"
      network    = google_compute_network.rdma[0].name
      subnetwork = google_compute_subnetwork.rdma["rdma-${index}"].name
      mode       = "RDMA"
    }],
  )
}
