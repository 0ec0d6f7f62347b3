output "repository" {
  description = "The beginning of the names of images: REGION-docker.pkg.dev/PROJECT/NAME."
  value       = "${google_artifact_registry_repository.this.location}-docker.pkg.dev/${google_artifact_registry_repository.this.project}/${google_artifact_registry_repository.this.repository_id}"
}

output "build_flags" {
  description = "Flags of `gcloud builds submit`: who builds, and where the sources go."
  value       = "--service-account=${google_service_account.build.id} --gcs-source-staging-dir=gs://${google_storage_bucket.sources.name}/source"
}
