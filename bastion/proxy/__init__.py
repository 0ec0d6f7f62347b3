"""The encrypting storage proxy: objects that a job stores through it are ciphertext in the bucket.

docs/reference/object-format.md describes their format. Keys come through the `Kms` port.
"""
