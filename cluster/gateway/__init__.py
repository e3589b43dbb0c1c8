"""Where Pulsar's clients connect: the listener of a gateway."""
