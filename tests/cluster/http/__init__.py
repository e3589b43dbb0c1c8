"""The HTTP server of a process, and what guards it."""
