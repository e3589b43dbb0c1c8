"""Samples of a running flood: memory, statistics, hot keys."""
