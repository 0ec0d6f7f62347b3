variable "name" {
  description = "The name of the VPC."
  type        = string
}

variable "region" {
  description = "The region."
  type        = string
}

variable "range" {
  description = "The addresses of the VPC, a /16."
  type        = string

  validation {
    condition     = can(regex("/16$", var.range))
    error_message = "vpc_range must be a /16: each zone gets 8,192 addresses, one for each pod."
  }
}

variable "zones" {
  description = "The availability zones."
  type        = list(string)
}

variable "log_days" {
  description = "How many days the flow logs are kept."
  type        = number
}

variable "key" {
  description = "The key of the flow logs."
  type        = string
}
