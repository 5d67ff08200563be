"""Comparisons with the ways of doing it by hand, on the user's own model, documents and machine."""
