"""What every experiment shares: studies, cells, pages, figures, networks and metrics."""
