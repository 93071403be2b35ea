"""Attention, norms, MLPs, adaLN-Zero blocks, and the denoiser that stacks them. `specs` registers them."""

__all__: list[str] = []
