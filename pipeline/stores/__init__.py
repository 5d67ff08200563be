"""What outlives the process: the ledger, and later the persisted caches."""
