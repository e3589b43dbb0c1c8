"""A run of a flood, from its start to its clean end."""
