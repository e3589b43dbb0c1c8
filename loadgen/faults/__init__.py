"""Faults: what breaks consumers, brokers, nodes and networks, and takes it back."""
