"""The machine under the program: files, signals, memory, hardware. Knows nothing of models or documents."""
