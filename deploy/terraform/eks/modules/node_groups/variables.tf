variable "cluster" {
  description = "The name of the cluster."
  type        = string
}

variable "node_role" {
  description = "The ARN of the nodes' role."
  type        = string
}

variable "cluster_group" {
  description = "The security group of the control plane and the nodes."
  type        = string
}

variable "vpc" {
  description = "The VPC."
  type        = string
}

variable "subnets" {
  description = "The private subnets, by zone."
  type        = map(string)
}

variable "key" {
  description = "The key of the nodes' disks."
  type        = string
}

variable "pools" {
  description = "The GPU pools, by name."
  type = map(object({
    instance_type = string
    zone          = string
    nodes         = number
    capacity      = string
    reservation   = string
    disk_size_gb  = number
  }))
}

variable "instance_types" {
  description = "Type in Bastion, GPUs and network cards of each instance type."
  type        = map(object({ type = string, gpus = number, network_cards = number }))
}
