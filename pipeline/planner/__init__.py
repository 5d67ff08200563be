"""Model shape, memory and hardware to a frozen Plan: pure arithmetic on ints, no torch."""
