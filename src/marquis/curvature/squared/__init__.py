"""Run the approximate backward passes: only the diagonal of M (squared), or all of M at narrow tensors (mixed)."""
