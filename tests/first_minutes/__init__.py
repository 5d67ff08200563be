"""The first quarter of an hour on a real card: what to ask it, in which order. See the README here."""
