output "vpc" {
  description = "The VPC."
  value       = aws_vpc.this.id
}

output "private_subnets" {
  description = "The private subnets, by zone, once they have their routes."
  value       = { for zone, subnet in aws_subnet.private : zone => subnet.id }
  depends_on = [
    aws_route.private, aws_route.public, aws_route_table_association.private, aws_route_table_association.public,
  ]
}
