"""Decoding of token samples: parallel unmasking by confidence, block after block, and self-correction."""
