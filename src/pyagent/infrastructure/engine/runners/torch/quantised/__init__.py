"""Weights that stay quantised on the device: their layout, how files come into it, and products with them."""
