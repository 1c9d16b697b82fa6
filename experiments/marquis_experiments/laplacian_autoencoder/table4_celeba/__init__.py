"""Attributes of faces from ten labelled images (LAE Table 4, Figure 13)."""
