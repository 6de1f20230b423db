"""The chain as an agent may see it: how its links stand, and by which policy neighbours share requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from pyagent.core.chain.balancing import Routing
from pyagent.core.chain.stats import LinkState
from pyagent.core.errors import RequestError

if TYPE_CHECKING:
    from pyagent.core.fleet.context import Context


class ChainView(msgspec.Struct, frozen=True):
    """The links in the chain's order, and `rules.routing`."""

    routing: Routing
    links: list[LinkState]


@runtime_checkable
class _Chain(Protocol):
    routing: Routing

    def link_states(self) -> list[LinkState]: ...


def chain_of(context: Context) -> ChainView:
    """Return the chain that a run asks; raises `RequestError` for a client with a key, and where there is none.

    What the links did counts the requests of all clients: that is an administrator's to see.
    """
    if context.run.tenant:
        raise RequestError("how the links stand is an administrator's to see: GET /pyagent/chain", param="model")
    backend = context.run.backend
    if not isinstance(backend, _Chain):
        raise RequestError(f"{backend.name} is no chain: it has no links to choose from", param="model")
    return ChainView(backend.routing, list(backend.link_states()))
