"""Curvature of a network's loss: network and data in, structured matrix out."""
