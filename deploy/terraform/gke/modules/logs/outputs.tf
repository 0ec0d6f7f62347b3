output "bucket" {
  description = "The log bucket."
  value       = google_logging_project_bucket_config.this.id
}
