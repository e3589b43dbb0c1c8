"""The listener of a gateway, to which Pulsar's clients connect."""
