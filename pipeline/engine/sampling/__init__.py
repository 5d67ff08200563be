"""From logits and hidden states to tokens, loops found, features."""
