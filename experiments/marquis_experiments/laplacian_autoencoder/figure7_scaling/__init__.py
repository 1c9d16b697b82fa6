"""Time and memory of curvature against image resolution (LAE Figure 7)."""
