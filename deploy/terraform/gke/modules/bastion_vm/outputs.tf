output "name" {
  description = "The name of the VM."
  value       = google_compute_instance.this.name
}
