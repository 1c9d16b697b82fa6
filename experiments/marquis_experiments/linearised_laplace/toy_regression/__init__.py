"""Error bars of small regression networks in one dimension."""
