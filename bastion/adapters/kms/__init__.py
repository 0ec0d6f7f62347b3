"""Key services: Cloud KMS, and a keyring file in its place."""
