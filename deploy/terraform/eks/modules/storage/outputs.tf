locals {
  volumes = merge(
    { for file_system in aws_fsx_lustre_file_system.this : "lustre" => {
      size = "${file_system.storage_capacity}Gi"
      csi = {
        driver           = "fsx.csi.aws.com"
        volumeHandle     = file_system.id
        volumeAttributes = { dnsname = file_system.dns_name, mountname = file_system.mount_name }
      }
    } },
    { for file_system in aws_efs_file_system.this : "efs" => {
      size = "1Ti" # EFS has no size, Kubernetes wants one
      csi  = { driver = "efs.csi.aws.com", volumeHandle = file_system.id, volumeAttributes = {} }
    } },
  )
}

output "manifests" {
  description = "A volume and a claim for each file system: the claims are `lustre` and `efs` in the bastion's namespace."
  value = flatten([for name, volume in local.volumes : [
    {
      apiVersion = "v1"
      kind       = "PersistentVolume"
      metadata   = { name = "${var.name}-${name}" }
      spec = {
        capacity                      = { storage = volume.size }
        accessModes                   = ["ReadWriteMany"]
        persistentVolumeReclaimPolicy = "Retain"
        storageClassName              = ""
        claimRef                      = { namespace = var.namespace, name = name }
        csi                           = volume.csi
      }
    },
    {
      apiVersion = "v1"
      kind       = "PersistentVolumeClaim"
      metadata   = { name = name, namespace = var.namespace }
      spec = {
        accessModes      = ["ReadWriteMany"]
        storageClassName = ""
        volumeName       = "${var.name}-${name}"
        resources        = { requests = { storage = volume.size } }
      }
    },
  ]])
}
