"""Jobs, attempts, gangs and places as plain values."""
