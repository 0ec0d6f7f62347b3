"""The encrypting storage proxy beside a host's command."""
