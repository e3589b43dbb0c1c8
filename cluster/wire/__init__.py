"""The connections between processes, over which actors call each other; strangers are refused.

`frames` is what travels, `handshake` who may speak, `carrier` one open socket, `connection` and `peers` the calling
side, `listener` the answering side, `endpoint` where a process listens. Nothing in here knows Ray.
"""
