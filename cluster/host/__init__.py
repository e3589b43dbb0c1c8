"""The host of actors in one process: disks, stores behind ports, metrics."""
