"""Decoding of token samples: parallel unmasking, block after block, self-correction, and sampling given known tokens."""
