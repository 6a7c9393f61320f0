"""Choose: enumerate every legal plan, drop what does not fit, rank the rest, and say what would change the answer."""
