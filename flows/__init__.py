"""Prefect flows: thin. Remove the decorators and the program still runs."""
