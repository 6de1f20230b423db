"""Conversations as append-only token logs, prompt normalization, and what users may ask of the prompt cache."""
