"""What the daemon tells people: the status, since when jobs wait, its log."""
