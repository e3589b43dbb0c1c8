"""Placement: which process runs what, and on which node.

`placement.py` decides, without I/O: slots, who serves which, which process waits, when refuge is taken and given back.
`standby.py` decides when a process that waits is made. `slots.py` has the names, and how processes are spread over
nodes. `placer.py` does what is decided through the `Processes` port, and is what the controller knows as `Places`.
"""
