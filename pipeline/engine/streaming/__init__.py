"""Models bigger than the device: weights prepared once, read layer by layer, each layer once for a whole
batch.
"""
