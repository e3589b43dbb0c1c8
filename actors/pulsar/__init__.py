"""Pulsar's binary protocol in front of topics and subscriptions: the conversation, without sockets."""
