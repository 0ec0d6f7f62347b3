"""HTTP/1.1, TLS certificates and loopback peers for the servers of this machine."""
