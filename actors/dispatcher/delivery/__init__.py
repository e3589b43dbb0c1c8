"""The delivery of one subscription: sessions, leases, the read loop, the dispatch loop, its record."""
