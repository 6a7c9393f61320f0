"""What the user's own runs teach: records of runs, the errors of predictions by kind of run, and their use in plans."""
