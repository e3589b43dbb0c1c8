"""One node of a cluster: its folder, its environment, its processes and Ray's."""
