variable "name" {
  description = "The beginning of the names."
  type        = string
}

variable "cluster" {
  description = "The name of the cluster."
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

variable "clients" {
  description = "The security groups of the nodes, by a fixed name."
  type        = map(string)
}

variable "key" {
  description = "The key of the file systems."
  type        = string
}

variable "namespace" {
  description = "The namespace of the jobs' pods."
  type        = string
}

variable "worker_account" {
  description = "The Kubernetes account of the jobs' pods."
  type        = string
}

variable "data_buckets" {
  description = "Existing S3 buckets that jobs may use: read or write by the bucket's name."
  type        = map(string)
}

variable "lustre" {
  description = "FSx for Lustre. null: none."
  type        = object({ zone = string, size_gib = number, throughput = number, bucket = string })
}

variable "efs" {
  description = "Whether there is an EFS file system."
  type        = bool
}
