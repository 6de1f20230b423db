"""Which models each link has: asked in the background, one question a link at a time, so that none holds up the rest.

A link that answered once is known by that answer while it is asked again. One that did not answer in time is not
waited for until a while later. Knows nothing of requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyagent.core.adapter_stacks import is_stack
from pyagent.core.chain.link import Link
from pyagent.core.messages import ModelInfo
from pyagent.core.resilience.deadline import Clock, Deadline

WAIT_SECONDS = 2.0
"""The longest wait for the lists of links."""
_FRESH_SECONDS = 5.0
_ASK_SECONDS = 15.0
_FORGIVEN_SECONDS = 30.0


@dataclass(slots=True)
class _Known:
    """What a link said last. `asked_at` is when it was asked, `failed_at` when that came to nothing."""

    models: list[ModelInfo] | None = None
    asked_at: float = float("-inf")
    failed_at: float = float("-inf")
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class ModelLists:
    """The lists of a chain's links. Use it from one event loop after another, not from two at once."""

    clock: Clock = time.monotonic
    _links: dict[str, _Known] = field(default_factory=dict[str, _Known])

    def has(self, link: Link, model: str) -> bool | None:
        """Return whether a link listed a model; None when it never listed any."""
        known = self._links.get(link.name)
        if known is None or known.models is None:
            return None
        is_listed = any(model == one.id or model in one.aliases for one in known.models)
        return is_listed or is_stack(model, [name for one in known.models for name in (one.id, *one.aliases)])

    async def models(self, links: Sequence[Link]) -> list[tuple[Link, list[ModelInfo]]]:
        """Return what each link has now, as far as they say in time; a link that fails has what it had before."""
        tasks = [task for link in links if (task := self._asked(link, fresh_seconds=0.0)) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=WAIT_SECONDS)
        return [(link, self._links[link.name].models or []) for link in links]

    async def find(self, links: Sequence[Link], model: str) -> bool:
        """Return whether a link has a model, as soon as one says so."""
        pending = {task for link in links if (task := self._asked(link)) is not None}
        deadline = Deadline.after(WAIT_SECONDS)
        while not any(self.has(link, model) for link in links):
            if not pending or deadline.is_past:
                return False
            _, pending = await asyncio.wait(
                pending, timeout=deadline.remaining_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        return True

    async def close(self) -> None:
        """Stop asking."""
        tasks = [known.task for known in self._links.values() if known.task and not known.task.done()]
        mine = [task for task in tasks if task.get_loop() is asyncio.get_running_loop()]
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)

    def _asked(self, link: Link, fresh_seconds: float = _FRESH_SECONDS) -> asyncio.Task[None] | None:
        """Return the query to a link that is worth waiting for, started where its list is not fresh."""
        known = self._links.setdefault(link.name, _Known())
        now = self.clock()
        is_under_way = (
            known.task is not None and not known.task.done() and known.task.get_loop() is asyncio.get_running_loop()
        )
        if not is_under_way and now - max(known.asked_at, known.failed_at) > fresh_seconds:
            known.asked_at = now
            known.task = asyncio.create_task(self._ask(link, known))
            is_under_way = True
        is_hopeless = now - known.failed_at < _FORGIVEN_SECONDS
        return known.task if is_under_way and not is_hopeless else None

    async def _ask(self, link: Link, known: _Known) -> None:
        late = asyncio.get_running_loop().call_later(WAIT_SECONDS, self._fail, known)
        try:
            known.models = await Deadline.after(_ASK_SECONDS).bound(link.backend.models(), link.name)
            known.failed_at = float("-inf")
        except Exception:  # noqa: BLE001 - a link that cannot say has nothing to offer
            self._fail(known)
        finally:
            late.cancel()

    def _fail(self, known: _Known) -> None:
        known.failed_at = self.clock()
