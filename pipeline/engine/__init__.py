"""Everything that touches a model: loading, tokenizer, caches, generation, scoring. Knows token ids, never
documents or tasks.
"""
