"""Nemotron: a list of objects between tags."""

from support.dialect_texts.families import listed, thought

CASES = [*listed("<TOOLCALL>", "</TOOLCALL>"), *thought("<think>", "</think>")]
