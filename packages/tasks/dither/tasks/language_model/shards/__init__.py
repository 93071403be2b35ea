"""Text as shards of token ids in a folder: made once by `prepare text`, then mapped, never loaded."""
