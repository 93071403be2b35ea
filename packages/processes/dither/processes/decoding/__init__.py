"""Decoding of tokens: parallel unmasking, block after block, self-correction, and sampling given known tokens."""
