"""A local Cloud TPU: the gRPC API, VMs as process groups, and their metadata servers."""
