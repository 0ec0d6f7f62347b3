"""Key services: Cloud KMS, or a keyring file."""
