"""The limits of a conversation: rates, connections, requests under way, unacknowledged bytes."""
