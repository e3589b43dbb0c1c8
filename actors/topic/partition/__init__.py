"""A partition of a topic: its log, its producers, its caches and its reads."""
