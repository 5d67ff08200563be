"""KV caches while they are in use: where their layers lie, how rows of them are taken out and put back."""
