variable "name" {
  description = "The name of the cluster."
  type        = string
}

variable "project_id" {
  description = "The project."
  type        = string
}

variable "region" {
  description = "The region of the log bucket."
  type        = string
}

variable "namespace" {
  description = "The bastion's namespace."
  type        = string
}

variable "days" {
  description = "How many days lines are kept."
  type        = number

  validation {
    condition     = var.days >= 1 && var.days <= 3650
    error_message = "log_days must be from 1 to 3650."
  }
}
