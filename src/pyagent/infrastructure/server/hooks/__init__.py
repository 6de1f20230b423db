"""Webhooks that come in: checked, kept, and each the beginning of a run."""
