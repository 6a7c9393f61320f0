"""What is told about a run while it goes on, and what is left of it to read."""
