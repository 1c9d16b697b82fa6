"""The mathematics of single operations: pull-backs, parameter gradients and squared rules."""
