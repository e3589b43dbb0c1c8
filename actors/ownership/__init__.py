"""Ownership of a metadata record: epochs, the proof that an owner was not replaced, names and ids."""
