"""A folder as a bucket: where objects lie, their generations, locks and listings.

Layer: above `bastion.core`, below the programs. `bastion.adapters.directory_store` serves the daemon, the worker and
the CLI from it, `bastion.emulator.gcs` everything that speaks HTTP; both may use one folder at the same time.
"""
