"""The history of a topic for readers outside the broker: scans, catalogs, Iceberg tables."""
