variable "name" {
  description = "The name of the repository."
  type        = string
}

variable "project_id" {
  description = "The project."
  type        = string
}

variable "region" {
  description = "The region of the repository."
  type        = string
}

variable "readers" {
  description = "Who may pull images."
  type        = list(string)
}
