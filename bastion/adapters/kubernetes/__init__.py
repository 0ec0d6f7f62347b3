"""The API of Kubernetes clusters, for any cluster that the official client can reach, or an emulated one."""
