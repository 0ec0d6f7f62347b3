variable "cluster" {
  description = "The cluster: projects/PROJECT/locations/REGION/clusters/NAME."
  type        = string
}

variable "region" {
  description = "The cluster's region."
  type        = string
}

variable "service_account" {
  description = "The account of the nodes."
  type        = string
}

variable "cpu_pool" {
  description = "The pool without accelerators."
  type = object({
    machine_type = string
    zones        = list(string)
    min_nodes    = number
    max_nodes    = number
    disk_size_gb = number
  })
}

variable "tpu_pools" {
  description = "Pools of TPU slices, by name."
  type = map(object({
    type             = string
    zone             = string
    hosts            = number
    slices           = number
    capacity         = string
    reservation      = string
    max_run_duration = string
    autoscaled       = bool
    topology         = string
    machine_type     = string
    disk_size_gb     = number
  }))
}

variable "tpu_types" {
  description = "What TPU types are made of."
  type = map(object({
    accelerator    = string
    machine_type   = string
    topology       = string
    chips_per_host = number
    hosts          = number
  }))
}

variable "gpu_pools" {
  description = "Pools of GPU nodes, by name."
  type = map(object({
    type             = string
    zone             = string
    nodes            = number
    capacity         = string
    reservation      = string
    max_run_duration = string
    autoscaled       = bool
    compact          = bool
    disk_size_gb     = number
  }))
}

variable "gpu_types" {
  description = "What GPU types are made of."
  type        = map(object({ accelerator = string, machine_type = string, gpus = number, networks = string }))
}

variable "networks" {
  description = "The further interfaces of a node, by the kind of network: tcpxo, rdma."
  type        = map(list(object({ network = string, subnetwork = string })))
}
