"""A trace of jobs of one resource type, replayed through a policy and measured (`yardsticks`)."""
