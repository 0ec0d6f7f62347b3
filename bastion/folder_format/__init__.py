"""A folder as a bucket: where objects lie, their generations, locks and listings.

Layer: above `bastion.core`, below the programs. `bastion.adapters.folder.store` serves the daemon, the worker and
the CLI from it, `bastion.emulators.gcs` everything that speaks HTTP; both may use one folder at the same time.
"""
