"""Webhooks over HTTP: what sends deliveries, and the loop that asks it to."""
