"""Lookup: the directory of addresses, and the client that asks the owner of a partition."""
