"""The sealed format of objects and its keys (docs/reference/object-format.md)."""
