"""The requests of operators to a dispatcher: seek, parked keys, inspection, statistics, settings."""
