"""The formats of what lies on disks and travels: batches, frames, journal records, cursors, positions."""
