output "name" {
  description = "The name of the cluster, once its first add-ons are there."
  value       = aws_eks_cluster.this.name
  depends_on  = [aws_eks_addon.first]
}

output "node_role" {
  description = "The ARN of the nodes' role, once it has its policies."
  value       = aws_iam_role.node.arn
  depends_on  = [aws_iam_role_policy_attachment.node]
}

output "security_group" {
  description = "The security group that EKS has made for the control plane and the nodes."
  value       = aws_eks_cluster.this.vpc_config[0].cluster_security_group_id
}

output "issuer" {
  description = "Who signs the tokens of the cluster's Kubernetes accounts."
  value       = aws_eks_cluster.this.identity[0].oidc[0].issuer
}
