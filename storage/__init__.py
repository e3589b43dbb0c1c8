"""The bytes: batches, frames, positions, journals, cursors, the delayed index, objects and metadata.

Nothing in here talks to a peer, reads a clock or draws a random number; see ARCHITECTURE.md for the layers.
"""

if __name__ == "storage":  # the folder of a clone, found by its own name
    raise ImportError("write `import sluice`: `storage` is a part of the package sluice, not a package of its own")
