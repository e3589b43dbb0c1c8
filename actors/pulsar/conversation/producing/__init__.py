"""A producer of a Pulsar client on one connection."""
