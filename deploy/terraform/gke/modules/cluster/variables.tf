variable "name" {
  description = "The name of the cluster."
  type        = string
}

variable "project_id" {
  description = "The project."
  type        = string
}

variable "region" {
  description = "The region: the control plane runs in three of its zones."
  type        = string
}

variable "network" {
  description = "The VPC."
  type        = string
}

variable "subnetwork" {
  description = "The subnet of the nodes."
  type        = string
}

variable "pods_range_name" {
  description = "The name of the subnet's range of pods."
  type        = string
}

variable "services_range_name" {
  description = "The name of the subnet's range of services."
  type        = string
}

variable "api_allowed_ranges" {
  description = "Addresses that reach the API server by its IP address, by name."
  type        = map(string)
}

variable "release_channel" {
  description = "GKE's release channel."
  type        = string
}

variable "no_upgrades" {
  description = "Spans without minor and node upgrades, by name."
  type        = map(object({ start = string, end = string }))
}

variable "deletion_protection" {
  description = "Whether `terraform destroy` refuses to delete the cluster."
  type        = bool
}

variable "labels" {
  description = "Labels of the cluster and of the machines and disks that it creates."
  type        = map(string)
}
