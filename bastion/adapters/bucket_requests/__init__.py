"""What stores in the cloud have in common: answers, retries, and writes whose result is certain."""
