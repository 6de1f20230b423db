"""What a chain asks about links that come and go: the nodes of a cluster.

A chain with a router has the router's links besides its own, and tries eligible links in the router's order. Everything
else is as for any link: breaker, limits, hedging, and an answer that breaks off is continued by the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyagent.core.backends import Backend
from pyagent.core.messages import ChatRequest, Hint


class Router(Protocol):
    """Brings links and orders them. Its methods return at once and never raise."""

    def backends(self) -> Sequence[Backend]:
        """Return the links there are; one that stays is the same object, one that started anew is another."""
        ...

    def order(self, request: ChatRequest, names: Sequence[str]) -> Sequence[str]:
        """Return the names of eligible links in the order to try them; one that is left out is not tried."""
        ...

    def asked(self, request: ChatRequest, name: str) -> None:
        """Note that a link is asked now: it will have the prompt soon."""
        ...

    def hinted(self, hint: Hint) -> Sequence[str]:
        """Return the names of its links that a hint concerns."""
        ...

    def away(self, model: str) -> str:
        """Return the name of a link that has a model and takes no requests now, or had it lately; empty for none."""
        ...

    def own_links(self, name: str) -> Sequence[str]:
        """Return the chain's own links that a name means which reads as one of its links; mostly none."""
        ...

    def why_none(self, link: str) -> str:
        """Return why a name that reads as one of its links names none, or several; empty for any other name."""
        ...

    def taker(self, node: str) -> str:
        """Return the name of the link that a request moves to, by the id of a node; empty when it can take nothing.

        That link may be asked for this request even where it is said to be absent.
        """
        ...

    def began(self, request: ChatRequest, name: str) -> None:
        """Note that a link gave the first token of an answer: it has computed the prompt."""
        ...
