"""Tests of cluster.wire."""
