variable "project_id" {
  description = "The Google Cloud project. Best a project of its own: the role of the nodes is granted on the project."
  type        = string
}

variable "region" {
  description = "The region of the cluster, the buckets and the registry. It must have the zones of all pools."
  type        = string

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "Use a region such as us-central1, without the letter of a zone."
  }
}

variable "cluster_name" {
  description = "The name of the cluster, and the beginning of the names of everything around it."
  type        = string
  default     = "training"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,18}[a-z0-9]$", var.cluster_name))
    error_message = "Use 2 to 20 lowercase letters, digits and hyphens: names of accounts begin with it and have at most 30."
  }
}

variable "labels" {
  description = "Labels of every resource that takes labels, for example for the bill."
  type        = map(string)
  default     = { managed-by = "terraform" }
}

variable "ranges" {
  description = "The address ranges of the nodes, the pods and the services. A node takes 256 addresses of the pods' range."
  type = object({
    nodes    = optional(string, "10.128.0.0/20")
    pods     = optional(string, "10.64.0.0/14")
    services = optional(string, "10.127.0.0/20")
  })
  default = {}
}

variable "api_allowed_ranges" {
  description = "Addresses that reach the API server by its IP address, by name. Others use its DNS name and need only IAM."
  type        = map(string)
  default     = {}
}

variable "release_channel" {
  description = "GKE's release channel. A fixed version is not offered: GKE ends the support of each after about 14 months."
  type        = string
  default     = "REGULAR"

  validation {
    condition     = contains(["RAPID", "REGULAR", "STABLE", "EXTENDED"], var.release_channel)
    error_message = "Use RAPID, REGULAR, STABLE or EXTENDED."
  }
}

variable "no_upgrades" {
  description = "Spans of at most 180 days without minor and node upgrades, by name, for runs that must not be interrupted. RFC 3339."
  type        = map(object({ start = string, end = string }))
  default     = {}
}

variable "cpu_pool" {
  description = "The nodes of the controllers, the daemon and everything else without an accelerator. `nodes` is per zone."
  type = object({
    machine_type = optional(string, "e2-standard-4")
    zones        = optional(list(string))
    min_nodes    = optional(number, 1)
    max_nodes    = optional(number, 3)
    disk_size_gb = optional(number, 100)
  })
  default = {}
}

variable "tpu_pools" {
  description = <<-EOT
    Pools of TPU slices, by name. `type` is a type of `bastion instance-types` without `tpu-`, and `hosts` the hosts of one
    slice, checked against the type. Each slice of a multi-host type is a node pool of its own; `slices` says how many.
    `capacity` is on-demand, spot, reservation (with `reservation`) or flex-start (with `max_run_duration`, as "604800s").
    `autoscaled` pools have no node while nobody asks. `topology` and `machine_type` replace the type's own.
  EOT
  type = map(object({
    type             = string
    zone             = string
    hosts            = number
    slices           = optional(number, 1)
    capacity         = optional(string, "on-demand")
    reservation      = optional(string)
    max_run_duration = optional(string)
    autoscaled       = optional(bool, false)
    topology         = optional(string)
    machine_type     = optional(string)
    disk_size_gb     = optional(number, 100)
  }))
  default = {}

  validation {
    condition     = alltrue([for pool in values(var.tpu_pools) : pool.slices >= 1 && floor(pool.slices) == pool.slices])
    error_message = "slices must be a whole number, at least 1; to have none, remove the pool."
  }

  validation {
    condition     = alltrue([for name in concat(keys(var.tpu_pools), keys(var.gpu_pools)) : can(regex("^[a-z][a-z0-9-]{0,34}[a-z0-9]$", name))])
    error_message = "Name each pool with 2 to 36 lowercase letters, digits and hyphens: names of node pools begin with it."
  }
}

variable "gpu_pools" {
  description = <<-EOT
    Pools of GPU nodes, by name. `type` is gpu-NAME-N, N the GPUs of one host; `nodes` is how many hosts. `capacity` is as
    in `tpu_pools`. `compact` puts the hosts close together. H100 Mega, H200 and B200 get their accelerator networks, in the
    pool's zone.
  EOT
  type = map(object({
    type             = string
    zone             = string
    nodes            = number
    capacity         = optional(string, "on-demand")
    reservation      = optional(string)
    max_run_duration = optional(string)
    autoscaled       = optional(bool, false)
    compact          = optional(bool, false)
    disk_size_gb     = optional(number, 200)
  }))
  default = {}
}

variable "bastion_name" {
  description = "The bastion's name, the last part of its ROOT. It ends in -bastion."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]*-bastion$", var.bastion_name))
    error_message = "The bastion's name has lowercase letters, digits and hyphens, and ends in -bastion."
  }
}

variable "bastion_in" {
  description = "Where the daemon runs: cluster (a Deployment) or vm (a small VM, which also creates slices of Cloud TPU)."
  type        = string
  default     = "cluster"

  validation {
    condition     = contains(["cluster", "vm"], var.bastion_in)
    error_message = "Use cluster or vm."
  }
}

variable "vm" {
  description = <<-EOT
    With bastion_in = "vm": the zone of the VM, its machine type, and the wheel that it installs, an object of the private
    bucket with its SHA-256.
  EOT
  type = object({
    zone         = string
    machine_type = optional(string, "e2-small")
    wheel        = string
    sha256       = string
  })
  default = null

  validation {
    condition     = var.bastion_in != "vm" || var.vm != null
    error_message = "bastion_in = \"vm\" requires vm = { zone, wheel, sha256 }."
  }
}

variable "namespace" {
  description = "The namespace of the daemon and of the jobs' pods. Give it to the bastion alone."
  type        = string
  default     = "bastion"
}

variable "worker_account" {
  description = "The Kubernetes account of the jobs' pods: --service_account of `bastion kubernetes manifest`."
  type        = string
  default     = "bastion-worker"
}

variable "bucket" {
  description = "The name of the bucket. Names are unique in the world."
  type        = string
}

variable "private_bucket" {
  description = "The name of the bucket of the quota file and the program, which the daemon cannot write."
  type        = string

  validation {
    condition     = var.private_bucket != var.bucket
    error_message = "Use another bucket than bucket: the daemon and the jobs write there."
  }
}

variable "users" {
  description = "Who launches jobs, for example [\"group:tpu-users@example.com\"]."
  type        = list(string)

  validation {
    condition     = alltrue([for each in var.users : can(regex("^(user|group|serviceAccount|domain|principal|principalSet):.", each))])
    error_message = "Say what each is: user:NAME@example.com, group:..., serviceAccount:..., domain:... or principal://..."
  }
}

variable "inboxes" {
  description = "With inboxes, who may write which: principals by the user's name, for example { alice = \"user:alice@example.com\" }."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for name in keys(var.inboxes) : can(regex("^[a-z0-9][a-z0-9._-]{0,62}$", name))])
    error_message = "A name has 1 to 63 of a-z, 0-9, '.', '_' and '-', and begins with a letter or digit; it is the user_id of the jobs."
  }

  validation {
    condition     = alltrue([for each in values(var.inboxes) : can(regex("^(user|group|serviceAccount|principal):.", each))])
    error_message = "Say who it is: user:NAME@example.com, serviceAccount:..., principal://..., or group:... for an inbox of a project."
  }
}

variable "admins" {
  description = "Who uploads the quota file and the settings, for example [\"group:tpu-admins@example.com\"]."
  type        = list(string)

  validation {
    condition     = alltrue([for each in var.admins : can(regex("^(user|group|serviceAccount|domain|principal|principalSet):.", each))])
    error_message = "Say what each is: user:NAME@example.com, group:..., serviceAccount:..., domain:... or principal://..."
  }
}

variable "data_buckets" {
  description = "Existing buckets that jobs may use: `read` or `write` by the bucket's name."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for access in values(var.data_buckets) : contains(["read", "write"], access)])
    error_message = "Use read or write for each bucket."
  }
}

variable "log_days" {
  description = "How many days the log bucket keeps the containers' own lines. The jobs' output is in the bastion's bucket."
  type        = number
  default     = 30
}

variable "deletion_protection" {
  description = "Whether `terraform destroy` refuses to delete the cluster and buckets that hold objects. Apply false, then destroy."
  type        = bool
  default     = true
}
