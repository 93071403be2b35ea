"""Attention, norms, MLPs, adaLN-Zero blocks, and the denoiser that stacks them. `specs` is the menu."""

__all__: list[str] = []
