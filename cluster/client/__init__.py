"""The public client: topics, producers, consumers, messages."""
