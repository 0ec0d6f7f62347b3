variable "name" {
  description = "The name of the cluster."
  type        = string
}

variable "kubernetes_version" {
  description = "The version of Kubernetes. null: EKS's default."
  type        = string
}

variable "subnets" {
  description = "The private subnets."
  type        = list(string)
}

variable "api_allowed_ranges" {
  description = "Addresses that reach the API server from outside."
  type        = list(string)
}

variable "admin_roles" {
  description = "ARNs of IAM roles that administer the cluster, by a short name."
  type        = map(string)
}

variable "key" {
  description = "The key of secrets, disks and logs."
  type        = string
}

variable "log_days" {
  description = "How many days the control plane's logs are kept."
  type        = number
}

variable "lustre" {
  description = "Whether pods mount FSx for Lustre."
  type        = bool
}

variable "efs" {
  description = "Whether pods mount EFS."
  type        = bool
}

variable "cpu_nodes" {
  description = "The nodes without accelerators."
  type        = object({ instance_type = string, min_nodes = number, max_nodes = number, disk_size_gb = number })
}

variable "deletion_protection" {
  description = "Whether `terraform destroy` refuses to delete the cluster."
  type        = bool
}
