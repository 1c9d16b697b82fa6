"""Studies behind the defaults: which link for classes, which tuning."""
