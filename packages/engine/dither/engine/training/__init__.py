"""The diffusion system, a training step, and evaluation."""
