"""The conversation with one client of Pulsar, on ports alone, so that the simulator can play it."""
