"""A consumer or reader of a Pulsar client on one connection."""
