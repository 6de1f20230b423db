"""Webhooks, without a socket: signatures, what is told of a run, when a delivery is tried again."""
