"""The parts of `pyagent cluster` that ask a running node over HTTP: its peers, draining, revoking, forgetting."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyagent.cli.options import AsJson, Config
from pyagent.cli.server_calls import call_server
from pyagent.core.errors import BackendError, ClusterError
from pyagent.core.sizes import format_bytes, format_duration

if TYPE_CHECKING:
    from pyagent.core.cluster.adverts import Role
    from pyagent.core.messages import JsonObject
    from pyagent.infrastructure.cluster.status import ClusterStatus, PeerStatus, PlacementStatus

_KV_STAYS = (
    "  KV does not move from or to this node: that takes a native link in one copy (engine.data_parallel), "
    'engine.process = false, and engine.kv_connector = "auto"\n'
)
_MAX_UNMET = 5
Url = Annotated[str | None, typer.Option("--url", help="The node's URL; without it the one that runs here.")]


def add_commands(app: typer.Typer) -> None:
    """Add the commands to `pyagent cluster`."""
    for command in (status, peers, drain, revoke, forget):
        app.command()(command)


def status(url: Url = None, as_json: AsJson = False, config: Config = None) -> None:
    """Show this node and how many peers it has, with their models and load."""
    import msgspec

    body = _ask("GET", "/pyagent/cluster", url, config)
    if as_json:
        sys.stdout.write(body.decode() + "\n")
        return
    from pyagent.infrastructure.cluster.status import ClusterStatus

    write_status(msgspec.json.decode(body, type=ClusterStatus))


def write_status(told: ClusterStatus) -> None:
    """Write what a node says of itself and its peers."""
    draining = ", draining" if told.is_draining else ""
    if told.is_revoked:
        draining = ", REVOKED: the others answer this node no more"
    num_connected = sum(peer.is_connected for peer in told.peers)
    num_there = sum(not _is_gone(peer) for peer in told.peers)
    sys.stdout.write(
        f"{told.name} ({told.id}) in cluster {told.cluster or '(unnamed)'}, epoch {told.epoch}{draining}\n"
        f"  door on port {told.door_port}; models {', '.join(told.models) or 'none'}{_role(told.role)}; "
        f"{_counted(told.num_answered_for_peers, 'request')} answered for peers, "
        f"{told.num_given_away} given to idle ones\n"
        f"{_KV_STAYS if told.keeps_kv else ''}"
        f"{num_connected} of {num_there} peers connected\n"
    )
    _show_peers(told)
    for line in told.unmet[:_MAX_UNMET]:
        sys.stdout.write(f"  not met: {line}\n")
    if len(told.unmet) > _MAX_UNMET:
        sys.stdout.write(f"  not met: {len(told.unmet) - _MAX_UNMET} more\n")
    for model in told.placement:
        sys.stdout.write(f"placement: {model.model} on {model.live} of {model.wanted} nodes{_short(model)}\n")


def _short(model: PlacementStatus) -> str:
    """Return what is done about a model that too few nodes have."""
    told = f", {model.loading} loading" if model.loading else ""
    if not model.is_named:
        return f"{told}; no node has it in engine.models: is it written as there?"
    if model.live + model.loading < model.wanted and not model.able:
        told += "; no other node can load it now"
    return told


def peers(url: Url = None, as_json: AsJson = False, config: Config = None) -> None:
    """List the peers with id, state, address and traffic."""
    import msgspec

    from pyagent.infrastructure.cluster.status import ClusterStatus

    told = msgspec.json.decode(_ask("GET", "/pyagent/cluster", url, config), type=ClusterStatus)
    if as_json:
        sys.stdout.write(msgspec.json.encode(told.peers).decode() + "\n")
        return
    for peer in told.peers:
        traffic = f"{format_bytes(peer.bytes_sent)} sent, {format_bytes(peer.bytes_received)} received"
        sys.stdout.write(f"{peer.id}  {peer.name}  {_state(peer)}  {peer.version}  {traffic}\n")
        for endpoint in peer.endpoints:
            sys.stdout.write(f"  {endpoint}\n")


def drain(
    seconds: Annotated[float, typer.Option("--seconds", min=0, max=3600, help="How long running answers have.")] = 30.0,
    resume: Annotated[bool, typer.Option("--resume", help="Take requests of peers again.")] = False,
    url: Url = None,
    config: Config = None,
) -> None:
    """Have this node take no more requests of its peers; they ask others."""
    import msgspec

    call = _ask("POST", "/pyagent/cluster/drain", url, config, {"grace_seconds": seconds, "resume": resume})
    left = msgspec.json.decode(call, type=dict[str, int])["num_running"]
    done = "takes requests of peers again" if resume else "drained"
    if left:
        done += f"; {_counted(left, 'answer')} not over in time: "
        done += "the nodes that asked go on elsewhere from the text they have"
    sys.stdout.write(f"{done}\n")


def revoke(
    node: Annotated[str, typer.Argument(help="The node's id, or its name where one node has it.")],
    url: Url = None,
    config: Config = None,
) -> None:
    """Put a node out of the cluster for ever; the others get a new secret."""
    import msgspec

    body = _ask("POST", "/pyagent/cluster/revoke", url, config, {"node": node})
    sys.stdout.write(f"revoked {_named(node, msgspec.json.decode(body, type=dict[str, str])['revoked'])}\n")


def forget(
    node: Annotated[str, typer.Argument(help="The id or name of a node that is gone.")],
    url: Url = None,
    config: Config = None,
) -> None:
    """List a node that is gone no longer, nor keep its key; it may join again."""
    import msgspec

    body = _ask("POST", "/pyagent/cluster/forget", url, config, {"node": node})
    sys.stdout.write(f"forgot {_named(node, msgspec.json.decode(body, type=dict[str, str])['forgotten'])}\n")


def _ask(method: str, path: str, url: str | None, config: Path | None, body: JsonObject | None = None) -> bytes:
    """Ask the node; where none answers, say what this machine lacks to be one."""
    try:
        return call_server(method, path, url, config, body, is_for_node=True)
    except BackendError as error:
        from pyagent.cli.startup import read_settings
        from pyagent.infrastructure.cluster.cluster_file import ClusterFile, cluster_folder

        if url is not None or ClusterFile(cluster_folder(read_settings(config).paths.data)).exists():
            raise
        advice = "make one with `pyagent cluster init` or join one with `pyagent cluster join`"
        raise ClusterError(f"this machine is in no cluster; {advice}, then run `pyagent node`") from error


def _named(wanted: str, node_id: str) -> str:
    return node_id if wanted == node_id else f"{wanted} ({node_id})"


def _show_peers(told: ClusterStatus) -> None:
    for peer in told.peers:
        if _is_gone(peer):
            sys.stdout.write(f"  {_shown(peer)}  {_state(peer)}\n")
            continue
        if not peer.is_connected:
            failure = f": {peer.failure}" if peer.failure else ""
            sys.stdout.write(f"  {_shown(peer)}  {_state(peer)}{failure}\n")
            continue
        models = (", ".join(peer.models) or "no models") + _role(peer.role)
        agents = f"; agents {', '.join(peer.agents)}" if peer.agents else ""
        load = f"{peer.num_running} running, {peer.num_waiting} waiting, {peer.free_kv_pages} KV pages free"
        sys.stdout.write(
            f"  {_shown(peer)}  {_state(peer)}  {peer.round_trip_seconds * 1000:.1f} ms  {models}{agents}\n"
            f"    {load}; {peer.num_answered} answered for this node; {peer.num_warm_prefixes} warm prefixes\n"
        )
        if peer.num_kv_loads or peer.kv_loaded_bytes or peer.kv_sent_bytes:
            sys.stdout.write(
                f"    KV of {_counted(peer.num_kv_loads, 'prompt')} came from it "
                f"({format_bytes(peer.kv_loaded_bytes)}); {format_bytes(peer.kv_sent_bytes)} went to it\n"
            )


def _role(role: Role) -> str:
    return "" if role == "both" else f"; role {role}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _is_gone(peer: PeerStatus) -> bool:
    return peer.state in {"dead", "left"}


def _shown(peer: PeerStatus) -> str:
    """Return its name, with its id where the name does not tell which node it is."""
    return peer.name if peer.link == f"peer:{peer.name}" else f"{peer.name} ({peer.id})"


def _state(peer: PeerStatus) -> str:
    if peer.state == "alive" and not peer.is_connected:
        return "not connected"
    if _is_gone(peer):
        return f"{'stopped' if peer.state == 'left' else 'gone'} {format_duration(peer.state_seconds)} ago"
    return "draining" if peer.is_draining else peer.state
