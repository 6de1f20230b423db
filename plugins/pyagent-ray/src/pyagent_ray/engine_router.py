"""Which engine of a link answers: the cluster's ranking, over what this process sent to each and what each computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyagent.plugin import (
    Backend,
    Balancer,
    ChatRequest,
    Hint,
    Node,
    WarmPrefixes,
    estimated_request_tokens,
    num_warm_tokens,
    prefix_keys,
)
from pyagent_ray.engine_link import EngineLink


@dataclass(slots=True)
class EngineRouter:
    """Orders the engines of one link; what it is to a chain is in `pyagent.plugin.Router`."""

    engines: Sequence[EngineLink]
    balancer: Balancer
    _warm: dict[str, WarmPrefixes] = field(default_factory=dict[str, WarmPrefixes])

    def backends(self) -> Sequence[Backend]:
        """Return no links besides the chain's own, which are the engines."""
        return ()

    def order(self, request: ChatRequest, names: Sequence[str]) -> Sequence[str]:
        """Return the engines by their estimated time to the first token, or as the policy says."""
        keys, num_tokens = prefix_keys(request), estimated_request_tokens(request)
        nodes = [
            Node(
                id=engine.name,
                num_sent=engine.num_running,
                num_warm_tokens=num_warm_tokens(keys, self._warm.get(engine.name, ()), num_tokens),
            )
            for engine in self.engines
            if engine.name in names
        ]
        return [node.id for node in self.balancer.order(nodes, num_tokens)]

    def asked(self, request: ChatRequest, name: str) -> None:
        """Note that an engine will have a prompt; where it was lost on the way the guess costs a prefill."""
        self._warm.setdefault(name, WarmPrefixes()).add(prefix_keys(request))

    def hinted(self, hint: Hint) -> Sequence[str]:
        """Return none besides the engines that were asked, which a chain tells by itself."""
        return ()

    def away(self, model: str) -> str:
        """Return no link: an engine that is down is asked again, as Ray starts it anew."""
        return ""

    def own_links(self, name: str) -> Sequence[str]:
        """Return none: each engine has a name of its own."""
        return ()

    def why_none(self, link: str) -> str:
        """Return nothing: names of engines are whole."""
        return ""

    def taker(self, node: str) -> str:
        """Return no link: engines move no requests among themselves."""
        return ""

    def began(self, request: ChatRequest, name: str) -> None:
        """Do nothing: it was asked before."""
