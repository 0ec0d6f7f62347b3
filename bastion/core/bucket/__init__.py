"""Formats of the bucket: keys, documents of the daemon and the hosts, bundles, outputs."""
