"""The agent: the program that runs commands on every host of a slice, and on the bastion for jobs without a slice."""
