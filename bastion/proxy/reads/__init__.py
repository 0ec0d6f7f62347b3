"""From a sealed object to a client's plaintext: downloads, ranges, and their conditions."""
