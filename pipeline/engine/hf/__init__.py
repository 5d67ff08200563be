"""The library's own decoders behind our engine interface."""
