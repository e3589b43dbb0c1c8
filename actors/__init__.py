"""The conversations: topic, bookie, dispatcher, consumer, producer, controller, and the decisions that they take.

Everything in here sees the world through actors.ports, so that the simulator can break it; see ARCHITECTURE.md.
"""
