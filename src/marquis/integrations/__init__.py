"""Adapt Marquis to other libraries, one file each: none is imported by the rest, and each names the extra it needs."""
