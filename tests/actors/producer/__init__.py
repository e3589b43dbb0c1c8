"""Tests of actors.producer."""
