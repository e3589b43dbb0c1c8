"""The owner of one partition: its log of ledgers, its producers, its readers."""
