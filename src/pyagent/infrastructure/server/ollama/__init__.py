"""Ollama's API: chat, generate, embed, and its models."""
