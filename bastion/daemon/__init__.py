"""The bastion daemon: runs ticks; reaches the world through ports only."""
