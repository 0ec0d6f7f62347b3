"""The agent that runs on every host of a slice, and on the bastion for jobs without a slice."""
