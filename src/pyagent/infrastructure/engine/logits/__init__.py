"""Logits processors of plugins: what a request names becomes functions, and a step's rows go through them."""
