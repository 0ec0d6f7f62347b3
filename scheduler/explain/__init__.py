"""Why jobs wait, and in which order."""
