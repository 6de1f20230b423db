"""Which waiting requests an engine is to give back before they begin."""

from __future__ import annotations

import msgspec


class Withdrawal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """At most so many of the movable requests that wait, first those that would begin first.

    Of `model` alone (empty: of any), and those that have waited for `waited_seconds`; with `of_peers`, those alone that
    a peer asked for. `to` is the id of the node that has room for them, empty where their callers are to choose.
    """

    at_most: int
    to: str = ""
    model: str = ""
    waited_seconds: float = 0.0
    of_peers: bool = False
