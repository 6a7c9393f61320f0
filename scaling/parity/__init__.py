"""Do all strategies train the same model? A few steps under each, beside plain PyTorch on the whole batch."""
