output "id" {
  description = "The cluster: projects/PROJECT/locations/REGION/clusters/NAME."
  value       = google_container_cluster.this.id
}

output "workload_pool" {
  description = "The identity pool of the cluster's Kubernetes accounts. It exists from the first cluster of the project on."
  value       = google_container_cluster.this.workload_identity_config[0].workload_pool
}

output "node_service_account" {
  description = "The account of the nodes. Known once it has its role."
  value       = google_service_account.nodes.email
  depends_on  = [google_project_iam_member.nodes]
}

output "kubeconfig" {
  description = "A kubeconfig for a VM of the project: the VM's own access token, fetched when it is needed."
  value = yamlencode({
    apiVersion      = "v1"
    kind            = "Config"
    current-context = var.name
    contexts        = [{ name = var.name, context = { cluster = var.name, user = "vm" } }]
    clusters = [{
      name    = var.name
      cluster = { server = "https://${google_container_cluster.this.control_plane_endpoints_config[0].dns_endpoint_config[0].endpoint}" }
    }]
    users = [{ name = "vm", user = { exec = {
      apiVersion      = "client.authentication.k8s.io/v1"
      interactiveMode = "Never"
      command         = "/opt/bastion/current/bin/python"
      args            = ["-c", file("${path.module}/vm_token.py")]
    } } }]
  })
}
