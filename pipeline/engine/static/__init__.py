"""Static batches: left-padded rows that begin and end together. The plain way, and the way out of any
failure.
"""
