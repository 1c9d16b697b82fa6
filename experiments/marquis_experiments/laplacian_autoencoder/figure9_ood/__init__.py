"""Out-of-distribution detection by autoencoders (LAE Figures 9 and 10)."""
