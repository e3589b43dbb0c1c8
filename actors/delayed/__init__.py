"""Delayed delivery at work: the trackers that a dispatcher asks which messages must wait and which are due."""
