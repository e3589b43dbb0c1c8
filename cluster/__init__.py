"""The real world: processes, sockets, disks, Ray, the public client, the gateway and HTTP."""

if __name__ == "cluster":  # the folder of a clone, found by its own name
    raise ImportError("write `import sluice`: `cluster` is a part of the package sluice, not a package of its own")
