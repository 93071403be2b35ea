"""Weights of published models under the names of our denoiser."""
