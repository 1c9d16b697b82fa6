"""The update rules of the paper's Appendix C, its linearised gradient step, and weights that start at zero."""
