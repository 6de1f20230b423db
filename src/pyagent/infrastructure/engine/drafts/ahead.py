"""What may be sampled after drafts: requests as they are after each, for the masks of the rows that follow them.

A draft that would end the answer is left out, with those after it: the token that ends it is sampled as any other.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyagent.infrastructure.engine.request import Request
    from pyagent.infrastructure.engine.scheduler.step_plan import Plan
    from pyagent.infrastructure.engine.step_masks import StepMasks


@dataclass(slots=True)
class Ahead:
    """A request's drafts, and where it may have a mask the request after each."""

    tokens: list[int]
    after: list[Request] = field(default_factory=list["Request"])


def follow(request: Request, drafts: Sequence[int]) -> list[Request]:
    """Return the request after each draft, up to where one would end it, break its form, or have a token forced."""
    after: list[Request] = []
    for token in drafts:
        before = after[-1] if after else request
        ahead = copy(before)
        ahead.thinking = copy(before.thinking)
        ahead.follow(before)
        ahead.num_prompt_tokens -= 1  # the log is the request's own: so it counts one more output token
        try:
            if ahead.is_ended_by(token) or ahead.forced_token is not None:
                break
        except BaseException:  # noqa: BLE001 - a draft that breaks the form, or a native grammar that panics
            break
        after.append(ahead)
    return after


def add_masks(plan: Plan, drafts: dict[int, Ahead], masks: StepMasks) -> dict[int, BaseException]:
    """Give a plan the masks of its rows, of one with drafts those of all its positions, one after the other.

    Return what the grammars of some rows failed with; one that fails after a draft loses the row its drafts.
    """
    after = {row: ahead.after for row, ahead in drafts.items()}
    positions = [(first, *after.get(row, ())) for row, first in enumerate(plan.sampled)]
    places = [(row, at, one) for row, of_row in enumerate(positions) for at, one in enumerate(of_row)]
    found, failed = masks.compute([one for _, _, one in places])
    for row in {places[place][0] for place in failed if places[place][1]}:
        del drafts[row]
    joined: dict[int, list[bytes]] = {}
    masked: set[int] = set()
    for place, (row, at, _) in enumerate(places):
        if at == 0 or row in drafts:
            joined.setdefault(row, []).append(found.get(place, masks.all))
            masked |= {row} if place in found else set()
    faults = {places[place][0]: error for place, error in failed.items() if not places[place][1]}
    plan.batch.masks = {row: b"".join(joined[row]) for row in masked - faults.keys()}
    return faults
