"""Tasks: what a model is trained to do, as a loss that is a sum over units and the count of those units.

The training loop divides the sum by the count of the whole global batch, over all micro batches and ranks, once. So a
task that sums over independent units gives the same update for any cut of a batch; `Task.couples_samples` names the one
kind that does not. ``base`` says what a task is; every other module is one kind; ``build`` makes one by its name.
"""
