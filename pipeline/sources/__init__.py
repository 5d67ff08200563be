"""Rows to documents: tolerant readers, ids, rejects."""
