"""The bastion daemon: one tick after another, reaching the world through ports only."""
