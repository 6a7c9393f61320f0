"""What this machine can run, and what is missing for a plan: one kind of check a file, each with its fixes."""
