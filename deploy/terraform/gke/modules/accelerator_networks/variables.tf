variable "name" {
  description = "The beginning of the names of the VPCs."
  type        = string
}

variable "project_id" {
  description = "The project."
  type        = string
}

variable "region" {
  description = "The region of the subnets."
  type        = string
}

variable "zone" {
  description = "The zone of the pools. A RoCE network is in one zone."
  type        = string
}

variable "kind" {
  description = "tcpxo or rdma."
  type        = string

  validation {
    condition     = contains(["tcpxo", "rdma"], var.kind)
    error_message = "Use tcpxo or rdma."
  }
}

variable "range" {
  description = "The addresses of all these networks, a /16. It must not be that of the nodes."
  type        = string
}
