"""The benchmarks run small, so that they do not rot."""
