"""The night: the runner, what it reads, its worker, and what it does when something goes wrong."""
