"""Commands for administrators, and about this program."""
