"""Conversations as append-only token logs, prompt normalization, and queries, pins and hints of the prompt cache."""
