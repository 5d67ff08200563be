"""The product: an offline batch pipeline for document collections. Knows nothing of Prefect, and importing it
does not import torch.
"""

__version__ = "0.2.0"
