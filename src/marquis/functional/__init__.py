"""How any network is called, checked, turned into a function, differentiated and linearised."""
