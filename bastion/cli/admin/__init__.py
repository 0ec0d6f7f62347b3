"""Commands for those who run a bastion, and about this program."""
