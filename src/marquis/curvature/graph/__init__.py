"""The captured network: a flat list of operations, how it is captured, cached and checked."""
