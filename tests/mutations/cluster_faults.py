"""Faults in nodes of a cluster: door, membership, transport, node, routing."""

from __future__ import annotations

from fault import Fault

_CLUSTER = "src/pyagent/infrastructure/cluster"
_DOOR = "tests/integration/test_cluster_door.py"

FAULTS = (
    Fault(
        "door-lets-in-the-revoked",
        f"{_CLUSTER}/handshake.py",
        "    if card.node_id in state.revoked:\n        return None\n",
        "",
        f"{_DOOR} -k revoked",
    ),
    Fault(
        "door-takes-an-old-secret-of-anybody",
        f"{_CLUSTER}/handshake.py",
        "common if state.is_member(card.node_id, card.public) and not state.is_closed else None",
        "common",
        f"{_DOOR} -k 'stolen or revoked'",
    ),
    Fault(
        "door-asks-for-no-proof-of-the-key",
        f"{_CLUSTER}/handshake.py",
        'b"pyagent door 1" + keys.shared_with(peer.public)',
        'b"pyagent door 1"',
        f"{_DOOR} -k stolen",
    ),
    Fault(
        "door-proof-leaves-out-what-was-said",
        f"{_CLUSTER}/handshake.py",
        'role.encode() + b"\\0" + transcript',
        'role.encode() + b"\\0"',
        f"{_DOOR} tests/integration/test_cluster_door_fuzz.py -k 'replay or whatever'",
    ),
    Fault(
        "knock-believes-any-door",
        f"{_CLUSTER}/door.py",
        'if not proves(proof, _proof("door", self._keys, answer.card, secret, said)):',
        "if False:",
        "tests/integration/test_cluster_door_fuzz.py -k whatever",
    ),
    Fault(
        "join-code-has-tries-without-end",
        f"{_CLUSTER}/invitation.py",
        "num_tries=found.num_tries + 1",
        "num_tries=found.num_tries",
        "tests/integration/test_cluster_join.py -k 'three_wrong or broken_off'",
    ),
    Fault(
        "cluster-file-can-be-read-by-others",
        f"{_CLUSTER}/private_file.py",
        "os.fdopen(os.open(partial, flags, 0o600)",
        "os.fdopen(os.open(partial, flags, 0o644)",
        "tests/unit/test_cluster_keys.py",
    ),
)
