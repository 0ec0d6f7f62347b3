output "network" {
  description = "The VPC."
  value       = google_compute_network.this.id
}

output "subnetwork" {
  description = "The subnet."
  value       = google_compute_subnetwork.this.id
}

output "pods_range_name" {
  description = "The name of the pods' range."
  value       = google_compute_subnetwork.this.secondary_ip_range[0].range_name
}

output "services_range_name" {
  description = "The name of the services' range."
  value       = google_compute_subnetwork.this.secondary_ip_range[1].range_name
}
