"""What a command measured: its results file, its MLLOG lines, and the facts about its environment."""
