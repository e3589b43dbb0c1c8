"""The second host of the actors: one seeded event loop with its own time, network, disks and stores."""
