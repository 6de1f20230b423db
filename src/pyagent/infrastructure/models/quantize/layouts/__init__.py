"""Families whose GGUF files have their tensors cut, joined or ordered otherwise than folders."""
