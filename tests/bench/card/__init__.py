"""What the engine would do on a graphics card, counted on a pretended one and predicted from the counts."""
