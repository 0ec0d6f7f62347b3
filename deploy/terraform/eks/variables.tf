variable "region" {
  description = "The AWS region."
  type        = string
}

variable "cluster_name" {
  description = "The name of the cluster, and the beginning of the names of everything around it."
  type        = string
  default     = "training"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,18}[a-z0-9]$", var.cluster_name))
    error_message = "Use 2 to 20 lowercase letters, digits and hyphens: names of pools and roles begin with it."
  }
}

variable "kubernetes_version" {
  description = "The version of Kubernetes, for example \"1.34\". null: EKS's default when the cluster is created."
  type        = string
  default     = null
}

variable "tags" {
  description = "Tags of every resource, for example for the bill."
  type        = map(string)
  default     = {}
}

variable "vpc_range" {
  description = "The addresses of the VPC, a /16. Each pod takes one of its zone's subnet."
  type        = string
  default     = "10.0.0.0/16"

  validation {
    condition     = can(cidrhost(var.vpc_range, 0)) && endswith(var.vpc_range, "/16")
    error_message = "Use a /16 such as 10.0.0.0/16."
  }
}

variable "zones" {
  description = "Two to four availability zones, with those of all GPU pools. More may be added at the end; their order is their addresses'."
  type        = list(string)

  validation {
    condition     = length(var.zones) >= 2 && length(var.zones) <= 4 && length(distinct(var.zones)) == length(var.zones)
    error_message = "EKS needs 2 zones; there are addresses for 4."
  }

  validation {
    condition     = alltrue([for zone in var.zones : startswith(zone, var.region)])
    error_message = "Use availability zones of region, such as us-west-2a."
  }
}

variable "api_allowed_ranges" {
  description = "Addresses that reach the API server from outside. Empty: from within the VPC only."
  type        = list(string)
  default     = []

  validation {
    condition     = !contains(var.api_allowed_ranges, "0.0.0.0/0")
    error_message = "Name the ranges of your offices or VPN, not the whole internet."
  }
}

variable "admin_roles" {
  description = "ARNs of IAM roles that administer the cluster, by a short name. Whoever applies first is an administrator, too."
  type        = map(string)
  default     = {}
}

variable "cpu_nodes" {
  description = "The nodes of the controllers, the daemon and everything else without an accelerator."
  type = object({
    instance_type = optional(string, "m7i.xlarge")
    min_nodes     = optional(number, 2)
    max_nodes     = optional(number, 4)
    disk_size_gb  = optional(number, 100)
  })
  default = {}
}

variable "gpu_pools" {
  description = <<-EOT
    Pools of GPU nodes, by name. `instance_type` is an instance type with GPUs, `nodes` how many hosts, `zone` one of `zones`.
    `capacity` is on-demand, spot, reservation or capacity-block, the last two with `reservation`, the id cr-... of the
    capacity reservation. Pools of more than one node have EFA.
  EOT
  type = map(object({
    instance_type = string
    zone          = string
    nodes         = number
    capacity      = optional(string, "on-demand")
    reservation   = optional(string)
    disk_size_gb  = optional(number, 500)
  }))
  default = {}

  validation {
    condition     = !contains(keys(var.gpu_pools), "cpu")
    error_message = "The pool cpu is that of cpu_nodes; use another name."
  }
}

variable "lustre" {
  description = <<-EOT
    FSx for Lustre beside the GPUs: its zone, its size in GiB (1,200 or a multiple of 2,400), MB/s for each TiB, and the
    name of the data bucket whose objects it shows below /data. null: none.
  EOT
  type = object({
    zone       = string
    size_gib   = optional(number, 1200)
    throughput = optional(number, 250)
    bucket     = optional(string)
  })
  default = null
}

variable "efs" {
  description = "Whether there is an EFS file system: slower than Lustre, but it grows by itself and costs nothing while empty."
  type        = bool
  default     = false
}

variable "data_buckets" {
  description = "Existing S3 buckets that jobs may use: `read` or `write` by the bucket's name."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for access in values(var.data_buckets) : contains(["read", "write"], access)])
    error_message = "Use read or write for each bucket."
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

variable "project_id" {
  description = "The Google Cloud project of the bastion's bucket."
  type        = string
}

variable "google_region" {
  description = "The Google Cloud region of the bastion's bucket: the one nearest to the cluster."
  type        = string

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.google_region))
    error_message = "Use a region of Google Cloud such as us-west1, not of AWS."
  }
}

variable "bastion_name" {
  description = "The bastion's name, the last part of its ROOT. It ends in -bastion."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]*-bastion$", var.bastion_name))
    error_message = "The bastion's name has lowercase letters, digits and hyphens, and ends in -bastion."
  }
}

variable "bucket" {
  description = "The name of the bastion's bucket on Cloud Storage. Names are unique in the world."
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
  description = "Who launches jobs, as Google Cloud names them, for example [\"group:gpu-users@example.com\"]."
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
  description = "Who uploads the quota file and the settings, as Google Cloud names them."
  type        = list(string)

  validation {
    condition     = alltrue([for each in var.admins : can(regex("^(user|group|serviceAccount|domain|principal|principalSet):.", each))])
    error_message = "Say what each is: user:NAME@example.com, group:..., serviceAccount:..., domain:... or principal://..."
  }
}

variable "log_days" {
  description = "How many days CloudWatch keeps the logs of the control plane and of the VPC's flows."
  type        = number
  default     = 365
}

variable "deletion_protection" {
  description = "Whether `terraform destroy` refuses to delete the cluster, images, and buckets that hold objects. Apply false, then destroy."
  type        = bool
  default     = true
}
