"""What launcher configuration files of others mean: read, resolved, corrected, translated. Imports no framework."""
