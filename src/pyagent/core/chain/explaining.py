"""What a chain would do with a request, link by link, and how its links are."""

from __future__ import annotations

import msgspec

from pyagent.core.backends import Backend
from pyagent.core.chain.failures import reason_of
from pyagent.core.chain.link import Link
from pyagent.core.errors import DeadlineError
from pyagent.core.messages import Health
from pyagent.core.resilience.breaker import State
from pyagent.core.resilience.deadline import Deadline

_HEALTH_SECONDS = 5.0


class LinkView(msgspec.Struct, frozen=True, kw_only=True):
    """What the chain would do with one link for a request, and why: a row of `pyagent chain explain`.

    `limits` are what bounds the link, in words.
    """

    backend: str
    is_eligible: bool
    reason: str
    breaker: State
    is_ready: bool
    detail: str = ""
    limits: str = ""


async def health_of(backend: Backend) -> Health:
    """Return a backend's health within a few seconds, also when a plugin's `health` raises."""
    try:
        return await Deadline.after(_HEALTH_SECONDS).bound(backend.health(), backend.name)
    except DeadlineError:
        return Health(is_ready=False, detail=f"did not answer within {_HEALTH_SECONDS:g} s")
    except Exception as error:  # noqa: BLE001 - see above
        return Health(is_ready=False, detail=reason_of(error))


def view_of(link: Link, health: Health, why_not: str) -> LinkView:
    """Return a row of the explanation; `why_not` says why the request may not go to the link."""
    state = link.breaker.state
    reason = why_not or _reason(link, health, state)
    return LinkView(
        backend=link.name,
        is_eligible=not why_not and state != "open",
        reason=reason,
        breaker=state,
        is_ready=health.is_ready,
        detail=health.detail,
        limits=limits_of(link),
    )


def _reason(link: Link, health: Health, state: State) -> str:
    if state == "open":
        return reason_of(link.open_error())
    if not health.is_ready:
        return "would be tried, and would likely fail"
    return "would be tried" if state == "closed" else "would be probed by one request"


def limits_of(link: Link) -> str:
    """Return a link's limits in words; empty when there are none."""
    settings = link.settings
    said = [f"weight {settings.weight:g}" if settings.weight is not None else ""]
    said.append(f"at most {settings.timeout_seconds:g} s of silence" if settings.timeout_seconds is not None else "")
    said += [
        f"{rate.count} in {rate.seconds:g} s" + (" for each client" if rate.is_per_client else "")
        for rate in settings.rates
    ]
    if settings.concurrency is not None:
        found = " now" if settings.concurrency == "auto" else ""
        said.append(f"{link.concurrency.limit} at once{found}")
    if settings.price is not None:
        said.append(f"${settings.price.input:g} in, ${settings.price.output:g} out for a million tokens")
    if settings.hedge_percentile is not None:
        said.append(f"overtaken after the {settings.hedge_percentile * 100:g}th percentile of its first-token times")
    elif settings.hedge_seconds is not None:
        said.append(f"overtaken after {settings.hedge_seconds:g} s")
    said.append(f"embeddings batched for {settings.batch_ms:g} ms" if settings.batch_ms is not None else "")
    said.append(f"{settings.context} tokens of context" if settings.context is not None else "")
    return ", ".join(filter(None, said))
