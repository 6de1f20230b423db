"""A member of the cluster, as nodes tell each other about it; its fields are bounded where a message is decoded."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

MAX_ADVERT_BYTES: Final = 8 << 10

NodeId = Annotated[str, Meta(min_length=1, max_length=64)]
PublicKey = Annotated[str, Meta(max_length=64)]
MAX_INCARNATION: Final = (1 << 62) - 1
Incarnation = Annotated[int, Meta(ge=0, le=MAX_INCARNATION)]
Counter = Annotated[int, Meta(ge=0, lt=1 << 62)]
Endpoint = Annotated[str, Meta(max_length=256, pattern=r"^tcp://[^\s/]+:[0-9]{1,5}$")]

State = Literal["alive", "suspect", "dead", "left"]
RANK: Final[dict[State, int]] = {"alive": 0, "suspect": 1, "dead": 2, "left": 3}
"""Of two claims about one incarnation of a member, the higher rank is taken."""


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A node: where it is, and by which key it is known.

    A member alone raises its `incarnation`, to contradict what others claim of it; where two claims differ, the higher
    incarnation is taken. `boot` is one start of the node's process: 0 where only the door has met it so far.
    """

    id: NodeId
    name: Annotated[str, Meta(max_length=128)]
    key: PublicKey
    endpoints: Annotated[tuple[Endpoint, ...], Meta(max_length=16)]
    incarnation: Incarnation = 0
    version: Annotated[str, Meta(max_length=64)] = ""
    boot: Counter = 0


class MemberView(msgspec.Struct, frozen=True):
    """What a node holds of a member: `since` is when its state changed, on the clock of the events.

    `advert` is what the member last said of itself, in bytes that membership does not read.
    """

    member: Member
    state: State
    since: float
    advert: bytes = b""
    advert_version: int = 0

    @property
    def is_live(self) -> bool:
        """Whether the member counts as running: alive, or suspected and not yet found dead."""
        return self.state in {"alive", "suspect"}
