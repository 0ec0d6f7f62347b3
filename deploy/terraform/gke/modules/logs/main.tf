# The containers' own lines, of the bastion's namespace only and for a stated time. The jobs' output is not here: the bastion
# keeps it in its bucket. A sink to a log bucket of the same project needs no grant.

resource "google_logging_project_bucket_config" "this" {
  project        = var.project_id
  location       = var.region
  bucket_id      = "${var.name}-bastion"
  retention_days = var.days
}

resource "google_logging_project_sink" "this" {
  name                   = "${var.name}-bastion"
  project                = var.project_id
  destination            = "logging.googleapis.com/${google_logging_project_bucket_config.this.id}"
  filter                 = <<-EOT
    resource.type="k8s_container"
    resource.labels.cluster_name="${var.name}"
    resource.labels.namespace_name="${var.namespace}"
  EOT
  unique_writer_identity = true
}
