"""Plan what a call will do and cost before anything large is allocated."""
