"""Run the exact and sketched backward pass: where it starts, where it is recompressed, and what it accumulates."""
