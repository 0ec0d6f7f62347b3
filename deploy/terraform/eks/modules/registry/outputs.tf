output "repository" {
  description = "The repository; `:TAG` follows."
  value       = aws_ecr_repository.this.repository_url
}
