"""Names and ids of nodes. Any member may take any name; its id follows from its key, so that no other can have it.

A name stands for a node where one alone has it. Rules of privacy know nodes by id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from pyagent.core.cluster.cluster_state import NODE_ID
from pyagent.core.errors import ClusterError, ConfigError
from pyagent.core.nearest import did_you_mean

SCHEME = "peer"
"""What links to nodes begin with: `peer:NAME`, or `peer:ID`."""


def unique_names(id_to_name: Mapping[str, str], own_name: str) -> dict[str, str]:
    """Return what each node goes by: its name where no other has it and it looks like no id, else its id."""
    num_called = Counter([*id_to_name.values(), own_name])
    return {
        node_id: name if name and num_called[name] == 1 and not NODE_ID.fullmatch(name) else node_id
        for node_id, name in id_to_name.items()
    }


def resolve(wanted: str, id_to_name: Mapping[str, str]) -> str:
    """Return the id of the node with this id or name. Raises `ClusterError` where no node has it, or several have."""
    if wanted in id_to_name:
        return wanted
    ids = [node_id for node_id, name in id_to_name.items() if name == wanted]
    if len(ids) == 1:
        return ids[0]
    if ids:
        raise ClusterError(f"{len(ids)} nodes are called {wanted!r}; give the id of one: {', '.join(sorted(ids))}")
    there = ", ".join(shown(node_id, name) for node_id, name in id_to_name.items())
    hint = did_you_mean(wanted, [*id_to_name, *id_to_name.values()], f"there are {there or 'none'}")
    raise ClusterError(f"no node is called {wanted!r}; {hint}")


def shown(node_id: str, name: str) -> str:
    """Return a node as errors name it: the name it gives itself, and its id."""
    return f"{name} ({node_id})" if name and name != node_id else node_id


def check_rules(entries: Iterable[str], id_to_name: Mapping[str, str]) -> None:
    """Raise `ConfigError` for a rule that names a node otherwise than by its id."""
    for entry in entries:
        scheme, _, target = entry.partition(":")
        if scheme != SCHEME or not target or NODE_ID.fullmatch(target):
            continue
        ids = sorted(node_id for node_id, name in id_to_name.items() if name == target)
        is_now = f"nodes that are called so now: {', '.join(f'{SCHEME}:{one}' for one in ids)}" if ids else ""
        told = is_now or "`pyagent cluster peers` lists the ids"
        text = f"{entry!r} trusts any member that takes that name; write {SCHEME}:ID ({told})"
        raise ConfigError(text, key="rules.private")
