"""HTTP/1.1, TLS certificates, and checks of loopback peers."""
