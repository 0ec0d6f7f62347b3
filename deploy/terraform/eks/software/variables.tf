variable "kubeconfig" {
  description = "Your kubeconfig."
  type        = string
  default     = "~/.kube/config"
}

variable "context" {
  description = "The context of the cluster in it: `kubectl config get-contexts`."
  type        = string
}

variable "namespace" {
  description = "The bastion's namespace. The first stage writes it."
  type        = string
}

variable "bastion_file" {
  description = "The file that the command of the first stage's output `manifest` has written. null: no bastion."
  type        = string
  default     = null
}

variable "bastion_in" {
  description = "Where the daemon runs: cluster or vm. The first stage writes it."
  type        = string
  default     = "cluster"
}

variable "daemon_user" {
  description = "With bastion_in = vm: the e-mail address of the VM's account. The first stage writes it."
  type        = string
  default     = ""
}

variable "queues_file" {
  description = "The output of `bastion quota export --format=kueue`, where Kueue decides. null: the bastion decides."
  type        = string
  default     = null
}

variable "extra_manifests" {
  description = "Further objects. The first stage writes them."
  type        = any
  default     = []
}

variable "kueue" {
  description = "Whether Kueue is installed. Only a cluster whose settings have `queue` needs it."
  type        = bool
  default     = false
}

variable "jobset_version" {
  description = "The version of JobSet's chart. Bastion's JobSets are checked against the definition of this version."
  type        = string
  default     = "0.12.0"
}

variable "kueue_version" {
  description = "The version of Kueue's chart. Exported queues are checked against the definitions of this version."
  type        = string
  default     = "0.19.2"
}

variable "pods_ready_timeout" {
  description = "How long Kueue waits for all pods of a gang before it takes the quota back. New nodes take up to 20 minutes."
  type        = string
  default     = "30m"
}

variable "nvidia_device_plugin_version" {
  description = "The version of the chart of NVIDIA's device plugin."
  type        = string
  default     = "0.17.1"
}

variable "efa_device_plugin_version" {
  description = "The version of the chart of EFA's device plugin."
  type        = string
  default     = "v0.5.7"
}
