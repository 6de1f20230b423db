"""The parts of `pyagent cluster` that ask a running node over HTTP: its peers, draining it, revoking another."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from pyagent.cli.options import AsJson, Config
from pyagent.cli.server_calls import call_server
from pyagent.core.sizes import format_bytes

if TYPE_CHECKING:
    from pyagent.infrastructure.cluster.status import ClusterStatus, PeerStatus

Url = Annotated[str | None, typer.Option("--url", help="The node's URL; without it that of the settings.")]


def add_commands(app: typer.Typer) -> None:
    """Add the commands to `pyagent cluster`."""
    for command in (status, peers, drain, revoke):
        app.command()(command)


def status(url: Url = None, as_json: AsJson = False, config: Config = None) -> None:
    """Show this node and how many peers it has, with their models and load."""
    import msgspec

    body = call_server("GET", "/pyagent/cluster", url, config)
    if as_json:
        sys.stdout.write(body.decode() + "\n")
        return
    from pyagent.infrastructure.cluster.status import ClusterStatus

    told = msgspec.json.decode(body, type=ClusterStatus)
    draining = ", draining" if told.is_draining else ""
    live = sum(peer.is_connected for peer in told.peers)
    sys.stdout.write(
        f"{told.name} ({told.id}) in cluster {told.cluster or '(unnamed)'}, epoch {told.epoch}{draining}\n"
        f"  door on port {told.door_port}; models {', '.join(told.models) or 'none'}; "
        f"{told.num_answered_for_peers} requests answered for peers\n"
        f"{live} of {len(told.peers)} peers connected\n"
    )
    _show_peers(told)


def peers(url: Url = None, as_json: AsJson = False, config: Config = None) -> None:
    """List the peers with id, state, address and traffic."""
    import msgspec

    from pyagent.infrastructure.cluster.status import ClusterStatus

    told = msgspec.json.decode(call_server("GET", "/pyagent/cluster", url, config), type=ClusterStatus)
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

    call = call_server("POST", "/pyagent/cluster/drain", url, config, {"grace_seconds": seconds, "resume": resume})
    left = msgspec.json.decode(call, type=dict[str, int])["num_running"]
    done = "takes requests of peers again" if resume else "drained" if not left else f"{left} answers still run"
    sys.stdout.write(f"{done}\n")


def revoke(
    node: Annotated[str, typer.Argument(help="The node's id, or its name where one node has it.")],
    url: Url = None,
    config: Config = None,
) -> None:
    """Put a node out of the cluster for ever; the others get a new secret."""
    import msgspec

    body = call_server("POST", "/pyagent/cluster/revoke", url, config, {"node": node})
    sys.stdout.write(f"revoked {msgspec.json.decode(body, type=dict[str, str])['revoked']}\n")


def _show_peers(told: ClusterStatus) -> None:
    for peer in told.peers:
        models = ", ".join(peer.models) or "no models"
        agents = f"; agents {', '.join(peer.agents)}" if peer.agents else ""
        load = f"{peer.num_running} running, {peer.num_waiting} waiting"
        sys.stdout.write(
            f"  {peer.name}  {_state(peer)}  {peer.round_trip_seconds * 1000:.1f} ms  {models}{agents}\n"
            f"    {load}; {peer.num_answered} answered for this node; {peer.num_warm_prefixes} warm prefixes\n"
        )


def _state(peer: PeerStatus) -> str:
    if peer.state == "alive" and not peer.is_connected:
        return "not connected"
    return "draining" if peer.is_draining else peer.state
