output "interfaces" {
  description = "Network and subnetwork of each further interface of a node, in order."
  value       = [for interface in local.interfaces : { network = interface.network, subnetwork = interface.subnetwork }]
}

output "manifests" {
  description = "The objects that make the networks known to the cluster."
  value = flatten([for interface in local.interfaces : [
    {
      apiVersion = "networking.gke.io/v1"
      kind       = "GKENetworkParamSet"
      metadata   = { name = interface.name }
      spec       = { vpc = interface.network, vpcSubnet = interface.subnetwork, deviceMode = interface.mode }
    },
    {
      apiVersion = "networking.gke.io/v1"
      kind       = "Network"
      metadata   = { name = interface.name }
      spec = {
        type          = "Device"
        parametersRef = { group = "networking.gke.io", kind = "GKENetworkParamSet", name = interface.name }
      }
    },
  ]])
}
