"""Backends that reach other programs over the network."""
