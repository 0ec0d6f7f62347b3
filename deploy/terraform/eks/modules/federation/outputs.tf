output "provider_name" {
  description = "The provider: `workload_identity_provider` of the daemon's settings."
  value       = "projects/${data.google_project.this.number}/locations/global/workloadIdentityPools/${google_iam_workload_identity_pool.this.workload_identity_pool_id}/providers/${google_iam_workload_identity_pool_provider.this.workload_identity_pool_provider_id}"
}

output "principal" {
  description = "The beginning of the principals of Kubernetes accounts; `:NAMESPACE:ACCOUNT` follows."
  value       = "principal://iam.googleapis.com/projects/${data.google_project.this.number}/locations/global/workloadIdentityPools/${google_iam_workload_identity_pool.this.workload_identity_pool_id}/subject/system:serviceaccount"
}
