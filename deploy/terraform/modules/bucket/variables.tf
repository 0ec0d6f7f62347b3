variable "project_id" {
  description = "The project of the buckets and of the three roles."
  type        = string
}

variable "region" {
  description = "The region of the buckets."
  type        = string
}

variable "bucket" {
  description = "The name of the bucket."
  type        = string
}

variable "private_bucket" {
  description = "The name of the bucket of the quota file and the program."
  type        = string

  validation {
    condition     = var.private_bucket != var.bucket
    error_message = "private_bucket must be another bucket: the daemon can write everything in the first."
  }
}

variable "bastion_name" {
  description = "The bastion's name."
  type        = string
}

variable "users" {
  description = "Who launches jobs."
  type        = list(string)
}

variable "inboxes" {
  description = "Who may write which inbox: principals by name (docs/how-to/share-a-bastion.md). Empty: everybody writes jobs/active/."
  type        = map(string)
}

variable "admins" {
  description = "Who uploads the quota file and the settings, and with inboxes, who gives and takes them."
  type        = list(string)
}

variable "daemon" {
  description = "The daemon's principal."
  type        = string
}

variable "worker" {
  description = "The principal of the jobs' pods."
  type        = string
}

variable "data_buckets" {
  description = "Existing buckets that jobs may use: read or write by the bucket's name."
  type        = map(string)
}

variable "force_destroy" {
  description = "Whether `terraform destroy` deletes buckets that hold objects: all logs and results."
  type        = bool
}
