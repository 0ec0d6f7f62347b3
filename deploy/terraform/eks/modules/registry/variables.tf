variable "name" {
  description = "The name of the repository."
  type        = string
}

variable "key" {
  description = "The key of the images."
  type        = string
}

variable "force_delete" {
  description = "Whether `terraform destroy` deletes a repository that holds images."
  type        = bool
}
