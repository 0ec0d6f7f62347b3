variable "name" {
  description = "The bastion's name, and the VM's."
  type        = string
}

variable "project_id" {
  description = "The project."
  type        = string
}

variable "network" {
  description = "The VPC."
  type        = string
}

variable "subnetwork" {
  description = "The subnet."
  type        = string
}

variable "zone" {
  description = "The zone of the VM."
  type        = string
}

variable "machine_type" {
  description = "The machine type of the VM."
  type        = string
}

variable "root" {
  description = "The bastion's ROOT."
  type        = string
}

variable "quota_root" {
  description = "The bastion's folder in the private bucket."
  type        = string
}

variable "wheel" {
  description = "The object with the program, in the private bucket."
  type        = string
}

variable "sha256" {
  description = "The SHA-256 of the wheel."
  type        = string
}

variable "account" {
  description = "The e-mail address of the daemon's account."
  type        = string
}

variable "kubeconfig" {
  description = "How the daemon reaches the cluster."
  type        = string
}

variable "allow_delete" {
  description = "Whether `terraform destroy` may delete the VM. Nothing in it is needed again."
  type        = bool
}
