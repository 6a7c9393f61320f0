"""A decision as the files and command lines that launchers take."""
