"""The encrypting storage proxy: what a job stores through it lies in the bucket as ciphertext.

Layer: a program of its own, beside adapters, daemon, worker and emulator; keys come through the `Kms` port.
The format of what it stores is `docs/reference/object-format.md`.
"""
