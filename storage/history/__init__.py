"""The past of a topic as Parquet files: parts of sealed ledgers, their columns, and compacted tables."""
