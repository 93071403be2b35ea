"""Token losses computed tile by tile from the hidden states, without the full logits."""
