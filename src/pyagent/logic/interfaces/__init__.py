"""User interfaces as trees of elements: written as code of nine frameworks, read back, found, audited."""
