"""Call any network, check it, turn it into a function, differentiate it and linearise it."""
