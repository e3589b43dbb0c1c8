"""The bytes: batches, frames, positions, journals, cursors, the delayed index, objects and metadata.

Nothing in here talks to a peer, reads a clock or draws a random number; see ARCHITECTURE.md for the layers.
"""
