"""Pulsar's admin interface by HTTP: its paths, its bodies and its JSON."""
