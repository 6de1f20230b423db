"""What is held against a member, and how long it has to contradict."""

from __future__ import annotations

from pyagent.core.cluster.timing import Timing

_MAX_ACCUSERS = 64


class Suspicion:
    """The accusers of one incarnation of a member. More accusers shorten its time, those without connection by most."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._accuser_to_is_cut: dict[str, bool] = {}
        self._is_found_dead = False
        self._known: tuple[int, float] | None = None  # the deadline for so many nodes: it is asked for at each event

    def accuse(self, by: str, *, is_cut: bool) -> bool:
        """Take an accusation; return whether it adds something."""
        known = self._accuser_to_is_cut.get(by)
        has_room = len(self._accuser_to_is_cut) < _MAX_ACCUSERS
        if (known is None and has_room) or (known is False and is_cut):
            self._accuser_to_is_cut[by] = is_cut
            self._known = None
            return True
        return False

    def found_dead(self) -> None:
        """Note that another member has waited already: the time is the shortest."""
        self._is_found_dead = True
        self._known = None

    @property
    def num_accusers(self) -> int:
        """How many members accuse."""
        return len(self._accuser_to_is_cut)

    def strongest(self) -> tuple[str, bool]:
        """Return an accuser, and whether its connection is broken; one whose is, if there is one."""
        return max(self._accuser_to_is_cut.items(), key=lambda item: item[1])

    def deadline(self, timing: Timing, num_nodes: int) -> float:
        """Return when the member is dead."""
        if self._known is None or self._known[0] != num_nodes:
            self._known = num_nodes, self._deadline(timing, num_nodes)
        return self._known[1]

    def _deadline(self, timing: Timing, num_nodes: int) -> float:
        num_cut = sum(self._accuser_to_is_cut.values())
        if self._is_found_dead:
            return self._since + timing.suspicion_seconds(num_nodes, num_nodes if num_cut else 0, num_nodes)
        return self._since + timing.suspicion_seconds(self.num_accusers, num_cut, num_nodes)
