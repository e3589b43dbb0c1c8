"""The conversations: topic, bookie, dispatcher, consumer, producer, controller, and the decisions that they take.

Everything in here sees the world through actors.ports, so that the simulator can break it; see ARCHITECTURE.md.
"""

if __name__ == "actors":  # the folder of a clone, found by its own name
    raise ImportError("write `import sluice`: `actors` is a part of the package sluice, not a package of its own")
