"""The shape of a model, read off its configuration: parameters, layers, bytes of cache a token."""
