"""Webhooks that go out, over HTTP: a key's own, and what became of what was sent."""
