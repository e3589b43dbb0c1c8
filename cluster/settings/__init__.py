"""The settings of a cluster, and where each value came from."""
