"""The load: publishers and consumers of a flood, and the processes that they run in."""
