"""Sluice on Spark: the session, the data source, batch and streaming reads, SQL."""
