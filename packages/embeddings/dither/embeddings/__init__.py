"""Embeddings of tokens, graphs, features, positions and the noise level; output heads. `specs` registers them."""

__all__: list[str] = []
