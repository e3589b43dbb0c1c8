"""The background jobs of a topic: trimming, offloading, compaction and erasure."""
