"""The times and counts of membership, and how they grow with the cluster.

The formulas are SWIM's (Das, Gupta, Motivala 2002) and Lifeguard's (Dadgar, Phillips, Currey 2018). The cut is added: a
member whose connections break is asked about at once and waited for shortly, one that is merely silent may be a busy
machine and is waited for long.
"""

from __future__ import annotations

import math
from functools import cache

import msgspec


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, counts and bounds; the defaults are for nodes on one local network."""

    period: float = 0.5
    """Each period one member is probed."""
    timeout: float = 0.25
    """How long a direct answer is waited for before others are asked to probe."""
    probe_seconds: float = 0.75
    """How long a probe takes before the member is suspected; answers by way of others take longest."""
    num_helpers: int = 3
    """How many members are asked to probe for this one."""
    silence_periods: float = 6.0
    """Periods that a silent member has to contradict, when enough others suspect it too; times log10 of the members."""
    silence_factor: float = 4.0
    """How much longer it has when no other suspects it."""
    cut_seconds: float = 0.4
    """How long a member has whose connections to enough others are broken; times log10 of the members."""
    num_confirmations: int = 3
    """How many others must suspect a member for the shortest times; in a small cluster, all of them."""
    num_checkers: float = 8.0
    """How many members, on average, probe one that they hear is suspected."""
    gossip_seconds: float = 0.1
    """The least time between two rounds of gossip of a member."""
    fanout: int = 3
    """How many members a round of gossip goes to."""
    retransmissions: float = 4.0
    """How often an update is sent on by each member; times log10 of the members."""
    sync_seconds: float = 10.0
    """How often tables are compared with a random member."""
    retry_seconds: float = 5.0
    """How often a random dead member is tried again."""
    forget_seconds: float = 86_400.0
    """How long a member is remembered after it died or left."""
    late_seconds: float = 0.15
    """A wake-up that comes later than this means that this node stood still, and no other is to blame for silence."""
    grace_seconds: float = 0.05
    """How long messages that waited meanwhile are read before silence counts again."""
    max_health: int = 8
    """By how many times a node that finds itself slow stretches its probes, at most."""
    max_members: int = 4096

    def silence_seconds(self, num_nodes: int) -> float:
        """Return how long a silent member has when enough suspect it."""
        return self.silence_periods * self.period * _grown(num_nodes)

    def suspicion_seconds(self, num_accusers: int, num_cut: int, num_nodes: int) -> float:
        """Return how long a member is suspected before it is dead; `num_cut` accusers have no connection to it."""
        needed = min(self.num_confirmations, num_nodes - 2)
        short = self.silence_seconds(num_nodes)
        silence = _shrunk(short * self.silence_factor, short, num_accusers, needed)
        if not num_cut:
            return silence
        return min(silence, _shrunk(short, self.cut_seconds * _grown(num_nodes), num_cut, needed))

    def num_sends(self, num_nodes: int) -> int:
        """Return how often an update is sent on."""
        return _num_sends(self.retransmissions, num_nodes)

    def sync_interval(self, num_nodes: int) -> float:
        """Return the seconds between two comparisons of tables: they grow with the tables."""
        return self.sync_seconds * max(1.0, math.log2(max(num_nodes, 1) / 16))


@cache
def _num_sends(retransmissions: float, num_nodes: int) -> int:
    return math.ceil(retransmissions * math.log10(num_nodes + 1))


def _grown(num_nodes: int) -> float:
    return max(1.0, math.log10(max(num_nodes, 1)))


def _shrunk(longest: float, shortest: float, num_accusers: int, needed: int) -> float:
    """Return Lifeguard's timeout: each further accuser shortens it, the first ones by most."""
    if needed < 1 or num_accusers > needed:
        return shortest
    return longest - (longest - shortest) * math.log(num_accusers) / math.log(needed + 1)
