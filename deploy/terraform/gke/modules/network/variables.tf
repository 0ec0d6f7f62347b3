variable "name" {
  description = "The name of the VPC and of everything in it."
  type        = string
}

variable "region" {
  description = "The region of the subnet."
  type        = string
}

variable "ranges" {
  description = "The address ranges of the nodes, the pods and the services."
  type        = object({ nodes = string, pods = string, services = string })
}
