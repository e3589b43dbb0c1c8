"""Pools of workers that call a user's function for every message, in order of each key."""
