"""Placement: which process runs what, and on which node.

`placement.py` decides, without I/O: slots, who serves which, which process waits, which slots fall back to another
process, and when they move back.
`standby.py` decides when a process that waits is made. `slots.py` has the names, and how processes are spread over
nodes. `placer.py` does what is decided through the `Processes` port, and is what the controller knows as `Places`.
"""
