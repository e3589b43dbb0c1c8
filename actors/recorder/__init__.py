"""The flight recorder: keeps what came into the decisions of a process, and makes the decisions again from it.

`recorded` taps the one entry of the decisions, `flight_file` is the format, `flight_recorder` writes a ring of files in
the background, and `replay` runs the decisions on what was kept.
"""
