"""User interfaces as trees of a few kinds of elements: written as code of nine frameworks, read back, found, audited."""
