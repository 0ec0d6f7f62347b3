output "root" {
  description = "The bastion's ROOT."
  value       = "gs://${google_storage_bucket.this.name}/${var.bastion_name}"
}

output "quota_root" {
  description = "The bastion's folder in the private bucket."
  value       = "gs://${google_storage_bucket.private.name}/${var.bastion_name}"
}
