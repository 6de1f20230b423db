"""The scaling agent: which link of the chain each load-balancing policy would choose now, and why. Asks no model."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import msgspec

from pyagent.core.chain.balancing import ROUTINGS, Balancer, Routing, Standing, why
from pyagent.core.chain.stats import LinkState
from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.scores import Score
from pyagent.core.hooks import hookimpl
from pyagent.logic.agents.typical_tasks import typical_tasks_of

_MILLION = 1e6
_MOST_TOKENS = 100_000_000
_ASKED = re.compile(
    r"\b(?:which|what)\s+(?:link|backend|provider|server)s?\b.{0,80}"
    r"\b(?:least (?:loaded|busy)|fastest|quickest|cheapest)\b",
    re.IGNORECASE | re.DOTALL,
)


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The request to place: its tokens, for `cost`; `routing` names one policy, else all are told."""

    routing: Routing | None = None
    prompt_tokens: int = 1000
    output_tokens: int = 500
    seed: int = 0

    def check(self) -> None:
        """Raise `RequestError` for a number of tokens that no request has."""
        for name in ("prompt_tokens", "output_tokens"):
            if not 0 <= getattr(self, name) <= _MOST_TOKENS:
                raise RequestError(f"expected {name} from 0 to {_MOST_TOKENS:,}, got {getattr(self, name)}", param=name)


class Choice(msgspec.Struct, frozen=True):
    """What a policy would do: the links in the order to ask them, and why the first is the first."""

    routing: Routing
    order: list[str]
    reason: str

    @property
    def link(self) -> str:
        """The link that is asked first."""
        return self.order[0]


class LinkHealth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A link as it stands. `away` says why it takes no request now; times are seconds to the first token."""

    name: str
    away: str = ""
    num_in_flight: int = 0
    limit: int | None = None
    num_answers: int = 0
    num_failures: int = 0
    first_token_p50: float | None = None
    first_token_p95: float | None = None
    usd: float = 0.0


class Spread(msgspec.Struct, frozen=True):
    """The chain's links, what each policy would choose, and which one `rules.routing` names."""

    routing: Routing
    links: list[LinkHealth]
    choices: list[Choice]
    note: str = ""

    def __str__(self) -> str:
        lines = [_line(link) for link in self.links]
        lines += [
            f"{choice.routing}{' (rules.routing)' if choice.routing == self.routing else ''}: "
            f"{', then '.join(choice.order)}; {choice.reason}"
            for choice in self.choices
        ]
        return "\n".join([*lines, *([f"({self.note})"] if self.note else [])])


class ScalingAgent:
    """Looks at the chain's links, and places a request on them by each policy."""

    name = "scaling"
    description = (
        "Says which backend of the chain a request would go to by load, latency or price, and how each stands."
    )
    typical_tasks = typical_tasks_of("scaling")
    arguments = Load

    def score(self, task: Task) -> float | None:
        """Asks which link is the least loaded, the quickest or the cheapest."""
        if not task.files and _ASKED.search(task.text[:1000]):
            return Score(0.8, "it asks which link of the chain to take")
        return 0.0 if task.files else None

    async def run(self, context: Context, task: Task) -> Spread:
        """Return how the links stand, and what each policy would choose among those that take requests."""
        load = task.arguments_as(Load)
        load.check()
        chain = await context.chain()
        ready = [_standing(link, load, nth) for nth, link in enumerate(chain.links) if not _away(link)]
        routings = (load.routing,) if load.routing else ROUTINGS
        choices = [_choice(routing, ready, load.seed) for routing in routings] if ready else []
        return Spread(chain.routing, [_health(link) for link in chain.links], choices, _note(chain.links, ready))


def _choice(routing: Routing, links: Sequence[Standing], seed: int) -> Choice:
    draw = random.Random(seed).random  # noqa: S311 - to draw links, again by the same seed
    ranked = [links[at] for at in Balancer(routing).preview(links, draw)]
    first, *others = ranked
    reason = why(routing, first, others) if others else "the only link that takes requests now"
    return Choice(routing, [link.name for link in ranked], reason)


def _note(links: Sequence[LinkState], ready: Sequence[Standing]) -> str:
    if not ready:
        return "no link takes a request now"
    if len(links) > 1 and sum(link.weight is not None for link in links) < 2:
        return "the chain asks its links in their order: give neighbours a `weight` and they share requests"
    return ""


def _standing(link: LinkState, load: Load, nth: int) -> Standing:
    price = link.price
    usd = 0.0 if price is None else load.prompt_tokens * price.input + load.output_tokens * price.output
    return Standing(
        name=link.backend,
        nth=nth,
        weight=link.weight or 1.0,
        num_in_flight=link.num_in_flight,
        first_token_seconds=link.first_token_p50,
        usd=usd / _MILLION,
    )


def _away(link: LinkState) -> str:
    """Return why a link takes no request now; empty when it does."""
    if link.breaker == "open":
        return f"left alone for {link.retry_in_seconds:.0f} s after: {link.reason}"
    if link.cooldown_seconds > 0:
        return f"cooling down for {link.cooldown_seconds:.0f} s, as it asked for"
    if link.limit is not None and link.num_in_flight >= link.limit:
        return f"full: {link.num_in_flight} under way"
    return ""


def _health(link: LinkState) -> LinkHealth:
    return LinkHealth(
        name=link.backend,
        away=_away(link),
        num_in_flight=link.num_in_flight,
        limit=link.limit,
        num_answers=link.num_answers,
        num_failures=sum(link.failures.values()),
        first_token_p50=link.first_token_p50,
        first_token_p95=link.first_token_p95,
        usd=link.usd,
    )


def _line(link: LinkHealth) -> str:
    limit = "" if link.limit is None else f" of {link.limit}"
    said = [link.away or "ready", f"{link.num_in_flight}{limit} under way", f"{link.num_answers} answered"]
    said += [f"{link.num_failures} failed"] if link.num_failures else []
    said += [f"first token {link.first_token_p50:.2f} s"] if link.first_token_p50 is not None else []
    said += [f"${link.usd:.4f} spent"] if link.usd else []
    return f"{link.name}: {', '.join(said)}"


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The scaling agent."""
    return [ScalingAgent()]
