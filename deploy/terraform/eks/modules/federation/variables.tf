variable "name" {
  description = "The name of the cluster."
  type        = string
}

variable "project_id" {
  description = "The Google Cloud project of the bastion's bucket."
  type        = string
}

variable "issuer" {
  description = "Who signs the tokens of the cluster's Kubernetes accounts."
  type        = string
}

variable "namespace" {
  description = "The namespace of the daemon and of the jobs' pods: tokens of other namespaces are refused."
  type        = string
}
