"""What outlives the process: the ledger and the persisted KV caches."""
