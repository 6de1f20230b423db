"""A join code: ten letters and digits that a person reads from one screen and types at another.

Pure. Its first two characters say which invitation is meant and are told to any door; the other eight are 40 random
bits, which SPAKE2 keeps from being tried anywhere but at the inviting node.
"""

from __future__ import annotations

from pyagent.core.errors import ClusterError

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's base 32: I, L, O and U are left out."""
CODE_CHARS = 10
_HINT_CHARS = 2
_READ_AS = str.maketrans("ILO", "110")


def code_from(random: bytes) -> str:
    """Return the code of ten random bytes."""
    return "".join(ALPHABET[byte % len(ALPHABET)] for byte in random[:CODE_CHARS])


def read_code(text: str) -> str:
    """Return a typed code without its dashes: any case, I and L read as 1, O as 0. Raises `ClusterError` for none."""
    code = "".join(text.upper().replace("-", " ").split()).translate(_READ_AS)
    if len(code) != CODE_CHARS or not set(code) <= set(ALPHABET):
        raise ClusterError("expected a join code such as K7Q-F92-4XNM, as `pyagent cluster invite` shows it")
    return code


def written(code: str) -> str:
    """Return a code as a person reads it, with dashes."""
    return f"{code[:3]}-{code[3:6]}-{code[6:]}"


def hint_of(code: str) -> str:
    """Return the part of a code that is no secret."""
    return code[:_HINT_CHARS]
