"""Capture a network as a flat list of operations, cache it and check it."""
