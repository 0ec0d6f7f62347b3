# Pods of the cluster reach the bastion's bucket on Cloud Storage without a key: Google trusts the issuer of the tokens of this
# cluster's Kubernetes accounts, and the bucket's roles are granted to two of them.

data "google_project" "this" {
  project_id = var.project_id
}

resource "google_iam_workload_identity_pool" "this" {
  project                   = var.project_id
  workload_identity_pool_id = "eks-${var.name}"
  display_name              = var.name
}

resource "google_iam_workload_identity_pool_provider" "this" {
  project                            = var.project_id
  workload_identity_pool_id          = google_iam_workload_identity_pool.this.workload_identity_pool_id
  workload_identity_pool_provider_id = "cluster"
  display_name                       = "EKS cluster ${var.name}"
  attribute_mapping                  = { "google.subject" = "assertion.sub" }
  attribute_condition                = "assertion.sub.startsWith('system:serviceaccount:${var.namespace}:')"

  oidc {
    issuer_uri = var.issuer
  }
}
