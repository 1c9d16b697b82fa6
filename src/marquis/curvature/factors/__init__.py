"""Represent what flows backwards: the square-root factor, and per-sample gradients as the rules compute them."""
