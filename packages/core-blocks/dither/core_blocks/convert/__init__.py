"""Weights of published models, renamed to the parameters of our denoiser."""
