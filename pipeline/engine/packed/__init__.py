"""Packed passes: sequences end to end in one forward pass, continuously batched."""
