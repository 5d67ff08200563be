"""The command line, one file a group of commands, and what a terminal shows."""
