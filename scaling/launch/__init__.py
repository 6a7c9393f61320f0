"""``scaling launch``: which launcher, whether its processes are the plan's, how they start and end; docs/launch.md."""
