"""The consumer: it polls with permits, acknowledges with its polls, and keeps what it holds when an owner changes."""
