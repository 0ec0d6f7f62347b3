"""What lies in the bucket: keys, the documents of daemon and hosts, bundles and outputs."""
