"""Fakes that tests of several packages share. Whole worlds are the simulator's: tests/sim."""
