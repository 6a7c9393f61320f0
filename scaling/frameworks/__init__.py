"""The same steps in PyTorch and in TensorFlow, side by side. Imports neither: each runs in processes of its own."""
