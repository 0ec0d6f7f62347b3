"""A local Cloud Storage: the JSON and XML API over folders as buckets, for the real client libraries.

`bastion emulator gcs` is the program. Every bucket is a folder that `bastion.adapters.folder.store` may use at the
same time: what a client of this API writes is a plain file, and a file copied in by hand is an object here.
"""
