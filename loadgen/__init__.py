"""The load test: floods from Spark, faults, the judge and the report."""

if __name__ == "loadgen":  # the folder of a clone, found by its own name
    raise ImportError("write `import sluice`: `loadgen` is a part of the package sluice, not a package of its own")
