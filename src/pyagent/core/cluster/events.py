"""What happens to a node, and what membership asks of it in turn.

A node keeps one timer, set by the last `WakeAt`, and hands in a `Tick` when it goes off; it hands in messages as they
arrive, and performs the effects in order. Sending may fail silently: all is repeated until it is known.
"""

from __future__ import annotations

import msgspec

from pyagent.core.cluster.member import Member, MemberView, State
from pyagent.core.cluster.messages import Message, Revocation


class Tick(msgspec.Struct, frozen=True):
    """The time of the last `WakeAt` came. The first one starts membership."""


class Received(msgspec.Struct, frozen=True):
    """A message arrived; `sender` is the id that the connection proved."""

    sender: str
    message: Message


class Met(msgspec.Struct, frozen=True):
    """A node passed the door."""

    member: Member


class Unreachable(msgspec.Struct, frozen=True):
    """The connection to a member was dropped or refused: a reason to ask others at once, never a death by itself."""

    peer: str


class Reachable(msgspec.Struct, frozen=True):
    """The connection to a member stands."""

    peer: str


class Advertise(msgspec.Struct, frozen=True):
    """Tell the others what this node says of itself from now on. Raises `ClusterError` when it is too long."""

    advert: bytes


class Moved(msgspec.Struct, frozen=True):
    """This node listens on other endpoints than before."""

    endpoints: tuple[str, ...]


class Leave(msgspec.Struct, frozen=True):
    """Say goodbye. Messages still go out until there is no `WakeAt`, or until the node stops."""


class Revoke(msgspec.Struct, frozen=True):
    """Put a node out of the cluster for ever, on this node's word."""

    revocation: Revocation


class Forget(msgspec.Struct, frozen=True):
    """Hold nothing more of a member that is dead or left; it may come back. A live one is not forgotten."""

    id: str


Event = Tick | Received | Met | Unreachable | Reachable | Advertise | Moved | Leave | Revoke | Forget


class Send(msgspec.Struct, frozen=True):
    """Send a message if the connection stands; it need not arrive."""

    peer: str
    message: Message


class Changed(msgspec.Struct, frozen=True):
    """A member is new (`was` is None), changed its state, or, where `was` is its state, its advert or its address."""

    view: MemberView
    was: State | None


class WakeAt(msgspec.Struct, frozen=True):
    """Hand in a `Tick` at this time, instead of any time asked for before."""

    time: float


class Meet(msgspec.Struct, frozen=True):
    """Let this member in and connect to it: it was learned from others, moved, restarted, or is tried again."""

    member: Member


class Rejoin(msgspec.Struct, frozen=True):
    """The others hold this node for dead, or gone: it has contradicted as `member`, with a higher incarnation."""

    member: Member


class Duplicate(msgspec.Struct, frozen=True):
    """Two running nodes have this id; one of them must take new keys. It may be this node's own id.

    Then `endpoints` are where the other one is said to listen, as far as that was told.
    """

    id: str
    endpoints: tuple[str, ...] = ()


class Revoked(msgspec.Struct, frozen=True):
    """A node is out of the cluster: drop its connections and keep the word. It may be this node itself."""

    revocation: Revocation


Effect = Send | Changed | WakeAt | Meet | Rejoin | Duplicate | Revoked
