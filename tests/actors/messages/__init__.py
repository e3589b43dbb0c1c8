"""Tests of actors.messages."""
