"""Claims of the paper that have no table, and the ablation of our default."""
