"""Tests of actors.consumer."""
