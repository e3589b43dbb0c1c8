"""The stores: immutable objects and versioned metadata records, in memory, in files, in SQLite and in S3."""
