"""The producer: batches in, runs out, one append in flight a partition, confirmed in order."""
