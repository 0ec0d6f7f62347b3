"""What a user's commands and Python programs take for granted: which bastion, project, inbox and user."""
