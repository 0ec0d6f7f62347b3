"""The sealed format of objects and its keys; see docs/reference/object-format.md. Independent of requests."""
