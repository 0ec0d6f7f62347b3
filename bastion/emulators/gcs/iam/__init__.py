"""Who may do what in the emulated Cloud Storage: principals, roles, policies of buckets and managed folders.

`permissions.py` states what each request needs; `access.py` decides. docs/adr/0060 tells what of IAM is emulated.
"""
