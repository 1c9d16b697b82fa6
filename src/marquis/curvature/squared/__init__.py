"""The approximate backward passes: only the diagonal of M (squared), or all of M where a tensor is narrow (mixed)."""
