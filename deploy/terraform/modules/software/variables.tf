variable "provider_name" {
  description = "gke or eks. On EKS the device plugins of GPUs and EFA are installed; GKE brings its own."
  type        = string

  validation {
    condition     = contains(["gke", "eks"], var.provider_name)
    error_message = "Use gke or eks."
  }
}

variable "namespace" {
  description = "The bastion's namespace."
  type        = string
}

variable "bastion_file" {
  description = "The output of `bastion kubernetes manifest`. null: no bastion, for a cluster that a daemon elsewhere serves."
  type        = string
}

variable "bastion_in" {
  description = "Where the daemon runs: cluster or vm."
  type        = string
}

variable "daemon_user" {
  description = "With bastion_in = vm: the user that the API server sees, the e-mail address of the VM's account."
  type        = string
}

variable "queues_file" {
  description = "The output of `bastion quota export --format=kueue`. null: no queues, the bastion decides."
  type        = string
}

variable "extra_manifests" {
  description = "Further objects, which the first stage writes: networks, volumes."
  type        = any
}

variable "kueue" {
  description = "Whether Kueue is installed."
  type        = bool
}

variable "jobset_version" {
  description = "The version of JobSet's chart."
  type        = string
}

variable "kueue_version" {
  description = "The version of Kueue's chart."
  type        = string
}

variable "nvidia_device_plugin_version" {
  description = "On EKS: the version of the chart of NVIDIA's device plugin."
  type        = string
  default     = ""
}

variable "efa_device_plugin_version" {
  description = "On EKS: the version of the chart of EFA's device plugin."
  type        = string
  default     = ""
}

variable "pods_ready_timeout" {
  description = "How long Kueue waits for all pods of a gang before it takes the quota back, as 30m."
  type        = string
}
