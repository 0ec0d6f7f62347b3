"""Commands about the encrypting storage proxy."""
