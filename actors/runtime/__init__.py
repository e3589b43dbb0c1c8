"""The parts that every actor runs on: its host, its requests, tasks, timers, signals and retries."""
