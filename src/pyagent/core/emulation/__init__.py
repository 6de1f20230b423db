"""Requests served by backends that lack what they ask for: said in the prompt, checked in the answer."""
