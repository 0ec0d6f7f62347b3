# What runs in the cluster, by Helm, in an order that also holds backwards: JobSet, Kueue, the bastion with its namespace, the
# queues. Objects of others than charts (the bastion's, the queues', extra_manifests) go through the chart in chart/, because
# kubernetes_manifest needs their definitions when Terraform plans, before Kueue is there.

locals {
  # One document after the other, as kubectl reads them; kind List counts as its items.
  bastion = flatten([for document in local.documents.bastion : try(document.items, [document])])
  queues  = flatten([for document in local.documents.queues : try(document.items, [document])])
  documents = {
    for name, path in { bastion = var.bastion_file, queues = var.queues_file } : name => [
      for text in path == null ? [] : split("\n---", "\n${file(path)}") : yamldecode(text)
      if trimspace(replace(text, "/(?m)^(#.*|---)?$/", "")) != ""
    ]
  }

  # The daemon on a VM needs the accounts and permissions, not the Deployment; its user gets the roles of the daemon's account.
  in_cluster = [for object in local.bastion : object if var.bastion_in == "cluster" || object.kind != "Deployment"]
  vm_bindings = [
    for object in local.bastion : merge(object, {
      metadata = merge(object.metadata, { name = "${object.metadata.name}-vm" })
      subjects = [{ kind = "User", name = var.daemon_user, apiGroup = "rbac.authorization.k8s.io" }]
    }) if var.bastion_in == "vm" && endswith(object.kind, "Binding")
  ]

  gpu_toleration = [{ key = "nvidia.com/gpu", operator = "Exists", effect = "NoSchedule" }]
}

resource "helm_release" "jobset" {
  name             = "jobset"
  repository       = "oci://registry.k8s.io/jobset/charts"
  chart            = "jobset"
  version          = var.jobset_version
  namespace        = "jobset-system"
  create_namespace = true
  atomic           = true
  timeout          = 600
}

resource "helm_release" "kueue" {
  count = var.kueue ? 1 : 0

  name             = "kueue"
  repository       = "oci://registry.k8s.io/kueue/charts"
  chart            = "kueue"
  version          = var.kueue_version
  namespace        = "kueue-system"
  create_namespace = true
  atomic           = true
  timeout          = 600

  values = [yamlencode({
    controllerManager = { replicas = 2, manager = { resources = { limits = { memory = "1Gi" } } } }
    # The chart takes this as one text. Only JobSets are Kueue's: its other integrations would put a webhook before every pod
    # and Deployment of the cluster.
    managerConfig = { controllerManagerConfigYaml = yamlencode({
      apiVersion                 = "config.kueue.x-k8s.io/v1beta2"
      kind                       = "Configuration"
      health                     = { healthProbeBindAddress = ":8081" }
      metrics                    = { bindAddress = ":8443", enableClusterQueueResources = true }
      webhook                    = { port = 9443 }
      leaderElection             = { leaderElect = true, resourceName = "c1f6bfd2.kueue.x-k8s.io" }
      clientConnection           = { qps = 300, burst = 500 }
      manageJobsWithoutQueueName = false
      integrations               = { frameworks = ["jobset.x-k8s.io/jobset"] }
      # A gang whose nodes never come gives its quota back, and waits behind those that asked meanwhile.
      waitForPodsReady = {
        timeout           = var.pods_ready_timeout
        recoveryTimeout   = "10m"
        blockAdmission    = false
        requeuingStrategy = { timestamp = "Eviction", backoffBaseSeconds = 60, backoffMaxSeconds = 1800 }
      }
    }) }
  })]

  depends_on = [helm_release.jobset]
}

resource "helm_release" "nvidia_device_plugin" {
  count = var.provider_name == "eks" ? 1 : 0

  name       = "nvidia-device-plugin"
  repository = "https://nvidia.github.io/k8s-device-plugin"
  chart      = "nvidia-device-plugin"
  version    = var.nvidia_device_plugin_version
  namespace  = "kube-system"
  atomic     = true

  # The chart's own affinity admits nodes with the label nvidia.com/gpu.present, which node_groups gives.
  values = [yamlencode({ tolerations = local.gpu_toleration })]
}

resource "helm_release" "efa_device_plugin" {
  count = var.provider_name == "eks" ? 1 : 0

  name       = "aws-efa-k8s-device-plugin"
  repository = "https://aws.github.io/eks-charts"
  chart      = "aws-efa-k8s-device-plugin"
  version    = var.efa_device_plugin_version
  namespace  = "kube-system"
  atomic     = true

  values = [yamlencode({
    nodeSelector = { "vpc.amazonaws.com/efa.present" = "true" }
    tolerations  = local.gpu_toleration
  })]
}

# Without the chart's namespace: the manifest brings its own, and Helm does not take over one that exists.
resource "helm_release" "bastion" {
  count = var.bastion_file == null ? 0 : 1

  name      = "bastion"
  chart     = "${path.module}/chart"
  namespace = "default"
  atomic    = true
  timeout   = 600

  values = [yamlencode({ manifests = concat(local.in_cluster, local.vm_bindings) })]

  lifecycle {
    precondition {
      condition     = contains([for object in local.bastion : "${object.kind} ${object.metadata.name}"], "Namespace ${var.namespace}")
      error_message = "bastion_file must be the output of `bastion kubernetes manifest --namespace=${var.namespace}`."
    }
    precondition {
      condition     = var.bastion_in == "cluster" || var.daemon_user != ""
      error_message = "bastion_in = \"vm\" requires daemon_user: the e-mail address of the VM's account."
    }
  }

  depends_on = [helm_release.jobset]
}

# GKE's networks of GPU hosts; volumes of FSx and EFS.
resource "helm_release" "extra" {
  count = length(var.extra_manifests) > 0 ? 1 : 0

  name      = "extra"
  chart     = "${path.module}/chart"
  namespace = "default"
  atomic    = true

  values     = [yamlencode({ manifests = var.extra_manifests })]
  depends_on = [helm_release.bastion]
}

resource "helm_release" "queues" {
  count = var.queues_file == null ? 0 : 1

  name      = "queues"
  chart     = "${path.module}/chart"
  namespace = "default"
  atomic    = true

  values = [yamlencode({ manifests = local.queues })]

  lifecycle {
    precondition {
      condition     = var.kueue
      error_message = "queues_file requires kueue = true."
    }
    precondition {
      condition     = length(local.queues) > 0 && alltrue([for object in local.queues : startswith(object.apiVersion, "kueue.x-k8s.io/")])
      error_message = "queues_file must be the output of `bastion quota export --format=kueue`: objects of kueue.x-k8s.io only."
    }
  }

  # Local queues are in the bastion's namespace.
  depends_on = [helm_release.kueue, helm_release.bastion]
}
