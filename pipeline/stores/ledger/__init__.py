"""The ledger: the one source of truth for what has been done, in one SQLite file."""
