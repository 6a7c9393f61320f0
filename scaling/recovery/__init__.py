"""What a run does when something goes wrong: out of memory, a signal, a rank that hangs or dies; docs/training.md."""
