"""Nearest neighbours on codes with few labels (LAE Figure 12)."""
