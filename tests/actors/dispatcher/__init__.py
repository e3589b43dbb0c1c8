"""Tests of actors.dispatcher."""
