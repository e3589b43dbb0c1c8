"""Bytes of Pulsar's binary protocol: commands, batches and messages as columns. It knows no actor and no port."""
