"""Finding the node that has the invitation for a code: every door that discovery offers is asked, each node once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from pyagent.core.errors import ClusterError
from pyagent.infrastructure.cluster.discovery import Discovery, DoorAddress, read_seed
from pyagent.infrastructure.cluster.join import Handover, Newcomer, RevokedKeyError, WrongCodeError, ask_to_join

_MAX_ASKED = 256
_MAX_TOLD = 3
_MAX_AT_ONCE = 8
_ASK_SECONDS = 20.0
_TELL_SECONDS = 1.0
_NUM_BEFORE_ADVICE = 3
_MORE_SECONDS = 2.0
"""How long others may still answer when one says that the code is wrong: it may say so to keep this node out."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The cluster that was joined, and the door where."""

    handover: Handover
    door: DoorAddress


async def find_and_join(
    discovery: Discovery, code: str, me: Newcomer, seconds: float, tell: Callable[[str], None] = lambda _: None
) -> Joined:
    """Ask the doors that are found within `seconds`, and return what the inviting node handed over.

    `tell` is told each second what has been looked at, and after three what else can be done. Raises `ClusterError`
    where a node says that the code is wrong, and where none has an invitation for it, with what went wrong there.
    """
    search = _Search(code, me)
    await discovery.start()
    telling = asyncio.create_task(_tell(search, tell))
    try:
        async with asyncio.timeout(seconds):
            return await search.run(discovery)
    except TimeoutError as error:
        raise ClusterError(search.told()) from error
    finally:
        telling.cancel()
        search.cancel()
        await discovery.stop()


async def join_at(at: str, code: str, me: Newcomer) -> Joined:
    """Ask the one door that is named. Raises `ClusterError` where it does not open, `ConfigError` for no address."""
    host, port = read_seed(at)
    handover = await ask_to_join(host, port, code, me)
    if handover is None:
        told = f"{at} has no open invitation for this code: it is mistyped, used, or older than ten minutes"
        raise ClusterError(f"{told}; run `pyagent cluster invite` there for a new one", peer=at)
    return Joined(handover, DoorAddress(host, port, "seed"))


async def _tell(search: _Search, tell: Callable[[str], None]) -> None:
    """Tell each second what is new of the search, and after three seconds what to do where it stays without success."""
    last = ""
    for number in itertools.count(1):
        await asyncio.sleep(_TELL_SECONDS)
        if (said := search.progress()) != last:
            last = said
            tell(said)
        if number == _NUM_BEFORE_ADVICE:
            tell("does `pyagent cluster invite` run there? Where the network hides it, --at HOST asks it directly")


class _Search:
    def __init__(self, code: str, me: Newcomer) -> None:
        self._code = code
        self._me = me
        self._asked: set[object] = set()
        self._places: list[str] = []
        self._failures: dict[object, ClusterError] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._end: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        self._turns = asyncio.Semaphore(_MAX_AT_ONCE)

    async def run(self, discovery: Discovery) -> Joined:
        self._keep(asyncio.create_task(self._look(discovery)))
        return await self._end

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def progress(self) -> str:
        """Say what has been looked at so far."""
        if not self._places:
            return "no node has been heard of yet"
        num_more = len(self._places) - _MAX_TOLD
        places = ", ".join(self._places[:_MAX_TOLD]) + (f" and {num_more} more" if num_more > 0 else "")
        return f"asked {places}: " + (self._told_failures() or "no open invitation for this code")

    def told(self) -> str:
        """Say why nothing was found."""
        first = "no node was found that has an open invitation for this code"
        advice = "run `pyagent cluster invite` on a node of the cluster, or say where it is with --at HOST"
        failures = self._told_failures()
        return f"{first}{f' ({failures})' if failures else ''}; {advice}"

    def _told_failures(self) -> str:
        return "; ".join(str(error) for error in list(self._failures.values())[:_MAX_TOLD])

    async def _look(self, discovery: Discovery) -> None:
        async for door in discovery:
            # A node has several addresses; at a second one the same wrong code would cost it a second try.
            who = door.node_id or (door.host, door.port)
            if who not in self._asked and len(self._asked) < _MAX_ASKED:
                self._asked.add(who)
                place = f"[{door.host}]:{door.port}" if ":" in door.host else f"{door.host}:{door.port}"
                if place not in self._places:
                    self._places.append(place)
                self._keep(asyncio.create_task(self._ask(door, who)))

    async def _ask(self, door: DoorAddress, who: object) -> None:
        try:
            async with self._turns:
                handover = await ask_to_join(door.host, door.port, self._code, self._me, _ASK_SECONDS)
        except ClusterError as error:
            # Of a node's several addresses, where the same is wrong, one is told.
            if type(self._failures.get(who)) is not type(error):
                self._failures[who] = error
            if isinstance(error, WrongCodeError | RevokedKeyError):
                asyncio.get_running_loop().call_later(_MORE_SECONDS, self._give_up, error)
            else:
                self._asked.discard(who)  # it may be reached at another address, or later
            return
        self._failures.pop(who, None)
        if handover is not None and not self._end.done():
            self._end.set_result(Joined(handover, door))

    def _give_up(self, error: ClusterError) -> None:
        if not self._end.done():
            self._end.set_exception(error)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
