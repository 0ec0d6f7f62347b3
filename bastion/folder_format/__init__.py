"""A folder as a bucket: places of objects, their generations, locks and listings.

`bastion.adapters.folder.store` and `bastion.emulators.gcs` stand on it, and may use one folder at the same time.
"""
