"""A local Cloud Storage for the real client libraries: the JSON and XML API over folders as buckets.

`bastion emulator gcs` runs it. `bastion.adapters.folder.store` may use a bucket's folder at the same time: an object is
a plain file, and a file that was copied in is an object.
"""
