"""`pyagent cluster`: make a cluster, invite a machine into it, join one with a code; `cluster_members` has the rest."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyagent.cli.cluster_members import add_commands
from pyagent.cli.options import Config
from pyagent.cli.startup import read_settings
from pyagent.core.errors import ClusterError

if TYPE_CHECKING:
    from pyagent.core.settings import Settings
    from pyagent.infrastructure.cluster.discovery import Discovery
    from pyagent.infrastructure.cluster.door import Door
    from pyagent.infrastructure.cluster.invitation import Invitation, InvitationFile, Outcome
    from pyagent.infrastructure.cluster.join import Newcomer
    from pyagent.infrastructure.cluster.join_search import Joined

app = typer.Typer(
    add_completion=False, help="Make a cluster of machines, invite others, join one.", no_args_is_help=True
)

_SEARCH_SECONDS = 20.0
_WATCH_SECONDS = 0.3
_ENDED = {
    "tried out": "it was tried with three wrong codes",
    "expired": "its ten minutes are over",
    "replaced": "another code was made here since, and one counts at a time",
}


@app.command()
def init(
    name: Annotated[
        str | None, typer.Option("--name", help="What the cluster is called; without it as this machine is.")
    ] = None,
    config: Config = None,
) -> None:
    """Make a new cluster, with this machine as its first node, and print a code for the second."""
    from pyagent.infrastructure.cluster.cluster_file import LEAVE_ADVICE, ClusterFile, cluster_folder
    from pyagent.infrastructure.cluster.invitation import InvitationFile
    from pyagent.infrastructure.cluster.keys import load_or_make_keys

    settings = read_settings(config)
    cluster = ClusterFile(cluster_folder(settings.paths.data))
    if cluster.exists():
        another = "`pyagent cluster invite` prints a code for another machine"
        raise ClusterError(f"this node is in a cluster already ({cluster.file}): {another}; {LEAVE_ADVICE}")
    cluster.check_room()
    keys = load_or_make_keys(cluster.folder)
    state = cluster.init(name or socket.gethostname())
    typer.echo(f"the cluster {state.name!r} is made; this node is {keys.node_id}")
    _show_code(InvitationFile(cluster.folder).make(), settings.cluster.port)
    typer.echo("`pyagent node` answers it; without a node running here, `pyagent cluster invite` does")


@app.command()
def invite(config: Config = None) -> None:
    """Print a join code, and wait here until a machine has used it."""
    from pyagent.cli.event_loop import run_to_end

    run_to_end(_invite(read_settings(config)))


@app.command()
def join(
    code: Annotated[
        str | None, typer.Argument(help="As `pyagent cluster invite` shows it; asked for if absent.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="HOST[:PORT]", help="The node that invites; else it is looked for.")
    ] = None,
    config: Config = None,
) -> None:
    """Join the cluster whose node shows this code."""
    from pyagent.cli.event_loop import run_to_end
    from pyagent.core.cluster.join_code import read_code

    settings = read_settings(config)
    typed = read_code(code if code is not None else _asked_code())
    run_to_end(_join(settings, typed, at))


@app.command()
def leave(config: Config = None) -> None:
    """Leave the cluster: forget its secret and this node's keys. A node that runs here is to be stopped first."""
    from pyagent.infrastructure.cluster.cluster_file import cluster_folder
    from pyagent.infrastructure.cluster.cluster_file import leave as leave_cluster

    folder = cluster_folder(read_settings(config).paths.data)
    if not leave_cluster(folder):
        raise ClusterError(f"this machine is in no cluster: there is nothing in {folder}")
    typer.echo("left; `pyagent cluster join` or `init` makes this machine a new node")


def _asked_code() -> str:
    try:
        return input("join code: " if sys.stdin.isatty() else "")
    except (EOFError, ValueError, AttributeError) as error:  # closed, or there is none
        text = "the join code is missing, and no input to ask; give it as an argument: `pyagent cluster join CODE`"
        raise typer.BadParameter(text) from error


async def _invite(settings: Settings) -> None:
    from pyagent.infrastructure.cluster.cluster_file import ClusterFile, cluster_folder
    from pyagent.infrastructure.cluster.invitation import InvitationFile

    folder = cluster_folder(settings.paths.data)
    state = ClusterFile(folder).standing()
    invitations = InvitationFile(folder)
    port = await _door_of_node(settings)
    door, discovery = (None, None) if port else await _open_door(settings, folder, invitations)
    replaced = invitations.find_open()
    invitation = invitations.make()
    typer.echo(f"inviting one machine into the cluster {state.name!r}")
    _show_code(invitation, door.port if door else port)
    if replaced is not None:
        typer.echo("(the code that was shown here before counts no longer)")
    try:
        while (outcome := invitations.outcome(invitation)) == "open":  # noqa: ASYNC110 - others may write the file
            await asyncio.sleep(_WATCH_SECONDS)
        _tell_outcome(outcome, invitations.find())
    finally:
        invitations.withdraw(invitation)
        if discovery is not None:
            await discovery.stop()
        if door is not None:
            await door.stop()


async def _door_of_node(settings: Settings) -> int:
    """Return the port of the door of the node that runs here, which answers the machine with the code; 0 for none."""
    from pyagent.cli.running_servers import running_servers
    from pyagent.infrastructure.cluster.door import is_door

    running = [server.door for server in running_servers(settings.paths.data) if server.door]
    if running:
        return running[0]
    port = settings.cluster.port
    return port if port and await is_door("127.0.0.1", port) else 0


async def _open_door(settings: Settings, folder: Path, invitations: InvitationFile) -> tuple[Door, Discovery]:
    """Open a door for visitors with a code, where no node runs that would answer them."""
    from pyagent.infrastructure.cluster.cluster_file import ClusterFile
    from pyagent.infrastructure.cluster.discovery import Discovery
    from pyagent.infrastructure.cluster.door import Door
    from pyagent.infrastructure.cluster.join import Inviter
    from pyagent.infrastructure.cluster.keys import load_or_make_keys

    keys, name = load_or_make_keys(folder), _name_of(settings)
    cluster = ClusterFile(folder)
    inviter = Inviter(keys, cluster, name, invitations)
    door = Door(keys, cluster, list, lambda _: None, name=name, inviter=inviter)
    port = await door.start(settings.cluster.bind, settings.cluster.port)
    # No tag: nodes of the cluster do not knock here, where no transport listens.
    discovery = Discovery(keys, "", port, name=name, multicast=settings.cluster.multicast)
    await discovery.start()
    return door, discovery


def _tell_outcome(outcome: Outcome, invitation: Invitation | None) -> None:
    if outcome == "used" and invitation is not None:
        typer.echo(f"node {invitation.used_by} has joined; it is shown by its name once it runs `pyagent node`")
        return
    ended = _ENDED.get(outcome, "its file is gone")
    raise ClusterError(f"no machine has joined: {ended}; invite again with `pyagent cluster invite`")


async def _join(settings: Settings, code: str, at: str | None) -> None:
    from pyagent.infrastructure.cluster.cluster_file import LEAVE_ADVICE, ClusterFile, cluster_folder
    from pyagent.infrastructure.cluster.join import Newcomer
    from pyagent.infrastructure.cluster.keys import load_or_make_keys, node_id_of
    from pyagent.infrastructure.cluster.known_peers import KnownPeers

    folder = cluster_folder(settings.paths.data)
    cluster = ClusterFile(folder)
    if cluster.exists():
        raise ClusterError(f"this node is in a cluster already ({cluster.file}); {LEAVE_ADVICE}")
    cluster.check_room()  # the code is used up before the cluster can be kept
    keys = load_or_make_keys(folder)
    found = await _find(settings, code, Newcomer(keys.public, _name_of(settings)), at)
    handover = found.handover
    cluster.join(handover.state())
    KnownPeers(folder).remember(node_id_of(handover.inviter.public), found.door.host, found.door.port)
    typer.echo(f"joined the cluster {handover.name!r} by {handover.inviter.name}; this node is {keys.node_id}")
    typer.echo("start it with `pyagent node`")


async def _find(settings: Settings, code: str, me: Newcomer, at: str | None) -> Joined:
    from pyagent.infrastructure.cluster.discovery import Discovery
    from pyagent.infrastructure.cluster.join_search import find_and_join, join_at

    if at is not None:
        return await join_at(at, code, me)
    multicast, seeds = settings.cluster.multicast, settings.cluster.seeds
    if not multicast and not seeds:
        raise ClusterError("cluster.multicast is off and there are no seeds; say where the node is with --at HOST")
    discovery = Discovery(None, None, 0, seeds=seeds, multicast=multicast)
    typer.echo("looking for the node that invites; Ctrl+C stops", err=True)
    return await find_and_join(discovery, code, me, _SEARCH_SECONDS, lambda told: typer.echo(told, err=True))


def _show_code(invitation: Invitation, port: int) -> None:
    from pyagent.core.cluster.addresses import DEFAULT_PORT
    from pyagent.core.cluster.join_code import written
    from pyagent.infrastructure.cluster.interfaces import interfaces

    code = written(invitation.code)
    typer.echo(f"\n  {code}    valid ten minutes, for one machine; type there:\n\n  pyagent cluster join {code}\n")
    addresses = [address for one in interfaces() for address in one.addresses("IPv4")][:3]
    if addresses:
        shown = "" if port in {0, DEFAULT_PORT} else f":{port}"
        typer.echo(f"(if it does not find this machine: --at {' or '.join(f'{one}{shown}' for one in addresses)})")


def _name_of(settings: Settings) -> str:
    from pyagent.core.cluster.cluster_state import clean_name

    return clean_name(settings.cluster.name or socket.gethostname())


add_commands(app)
