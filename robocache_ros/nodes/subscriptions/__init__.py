"""Subscriptions: the messages of the topics, into the engine."""
