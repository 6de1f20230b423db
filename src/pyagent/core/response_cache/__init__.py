"""Answers that need no computing: kept ones, and those that equal requests share while they are made."""
