"""What is asked of every document: one small module a task kind."""
