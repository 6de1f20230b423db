"""Plugins in processes of their own: their agents and tools may do what they declare, and no more."""
