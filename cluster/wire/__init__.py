"""What actors of different processes say to each other: connections of their own, closed to strangers.

`frames` is what travels, `handshake` who may speak, `carrier` one open socket, `connection` and `peers` the calling
side, `listener` the answering side, `endpoint` where a process listens. Nothing in here knows Ray.
"""
