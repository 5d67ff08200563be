"""What the engines share of persisted caches: what to look up, what to keep, under which fingerprint."""
