"""Delayed delivery at rest: sorted columns, position bitmaps, bucket objects and the manifest. No I/O in here."""
