"""Policies that operators set for topics and namespaces: retention, time to live, backlog quotas, schemas."""
