"""The library's own decoders as contestants: what ``overnight bench`` compares ours with, and nothing else
uses.
"""
