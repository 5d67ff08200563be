"""One model: where it is, what it is, its tokenizer, and how it is loaded."""
