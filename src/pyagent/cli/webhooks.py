"""`pyagent webhooks`: where events of runs are sent, what waits, what failed, and sending it again."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyagent.cli.options import AsJson, Config
from pyagent.cli.output import for_terminal, write_json
from pyagent.cli.run_journal import open_journal
from pyagent.core.errors import RequestError

if TYPE_CHECKING:
    from pyagent.core.webhooks.messages import Delivery, Endpoint
    from pyagent.infrastructure.storage.webhooks.endpoints import Added, SqliteWebhooks

app = typer.Typer(
    add_completion=False, help="Tell other programs what runs do, by signed webhooks.", no_args_is_help=True
)
Tenant = Annotated[
    str, typer.Option("--tenant", metavar="NAME", help="Whose runs: the name of a server's key; without it your own.")
]
Webhook = Annotated[str, typer.Argument(metavar="WEBHOOK", help="A webhook's id, as `pyagent webhooks list` shows it.")]
_AGO = re.compile(r"([0-9]{1,6})([smhd])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def open_webhooks(config: Path | None) -> SqliteWebhooks:
    """Return the webhooks of the journal that the settings name."""
    return open_journal(config).webhooks


@app.command("list")
def list_webhooks(tenant: Tenant = "", as_json: AsJson = False, config: Config = None) -> None:
    """List the webhooks, with what waits for each and what failed."""
    found = open_webhooks(config).endpoints(tenant)
    if as_json:
        write_json([shown(one) for one in found])
        return
    for one in found:
        sys.stdout.write(f"{line_of(one)}\n")
    if not found:
        sys.stdout.write("no webhooks: add one with `pyagent webhooks add URL --events run.finished`\n")


@app.command()
def add(
    url: Annotated[str, typer.Argument(help="Where to: an https:// URL.")],
    events: Annotated[
        str,
        typer.Option("--events", metavar="A,B", help="Events to tell of, such as run.finished,run.failed; * is all."),
    ],
    secret: Annotated[
        str, typer.Option("--secret", metavar="REFERENCE", help="env:NAME or file:PATH; without it one is made.")
    ] = "",
    tenant: Tenant = "",
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Add a webhook. Its secret, which signs what is sent, is shown now and never again."""
    _show_added(open_webhooks(config).add(tenant, url, events.split(","), secret), as_json=as_json)


@app.command()
def rotate(webhook: Webhook, tenant: Tenant = "", as_json: AsJson = False, config: Config = None) -> None:
    """Give a webhook a new secret; for a day what is sent is signed by the old one, too."""
    _show_added(open_webhooks(config).rotate(tenant, webhook), as_json=as_json)


def _show_added(added: Added, *, as_json: bool) -> None:
    if as_json:
        write_json(shown(added.endpoint) | {"secret": added.secret})
        return
    sys.stdout.write(f"{line_of(added.endpoint)}\nsecret, shown this once: {added.secret}\n")


@app.command("rm")
def remove(
    webhooks: Annotated[list[str], typer.Argument(metavar="WEBHOOK...", help="Ids of webhooks.")],
    tenant: Tenant = "",
    config: Config = None,
) -> None:
    """Remove webhooks, and what waits for them."""
    kept = open_webhooks(config)
    for webhook in webhooks:
        kept.remove(tenant, webhook)
        sys.stdout.write(f"removed {webhook}\n")


@app.command()
def enable(webhook: Webhook, tenant: Tenant = "", config: Config = None) -> None:
    """Send to a webhook again that was disabled because it took nothing."""
    sys.stdout.write(f"{line_of(open_webhooks(config).enable(tenant, webhook))}\n")


@app.command("test")
def try_webhook(webhook: Webhook, tenant: Tenant = "", config: Config = None) -> None:
    """Send a webhook a `webhook.ping` now, once, and say what it answers."""
    from pyagent.infrastructure.webhooks.deliveries import ping

    answer = asyncio.run(ping(open_webhooks(config), tenant, webhook))
    if not answer.is_success:
        raise RequestError(f"{webhook} did not take it: {answer.text}", param="webhook")
    sys.stdout.write(f"{webhook} took it: status {answer.status}\n")


@app.command()
def waiting(tenant: Tenant = "", as_json: AsJson = False, config: Config = None) -> None:
    """List the messages that wait, the newest first."""
    _list_messages(open_webhooks(config).outbox.deliveries(tenant, "waiting"), "nothing waits", as_json=as_json)


@app.command()
def dead(tenant: Tenant = "", as_json: AsJson = False, config: Config = None) -> None:
    """List the dead letters: messages that no attempt could deliver, the newest first."""
    _list_messages(open_webhooks(config).outbox.deliveries(tenant, "dead"), "no dead letters", as_json=as_json)


@app.command()
def inbox(
    dead: Annotated[bool, typer.Option("--dead", help="Only dead letters.")] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """List the messages that came in by hooks (`server.hooks`), the newest first."""
    found = open_webhooks(config).inbox.messages("dead" if dead else None)
    if as_json:
        write_json(found)
        return
    from pyagent.infrastructure.webhooks.desk import clock

    for one in found:
        said = f"{one.state}  {one.run}  {one.error}".rstrip()
        sys.stdout.write(f"{for_terminal(f'{one.name}  {one.hook}  {clock(one.received_at)}  {said}')}\n")
    if not found:
        sys.stdout.write("nothing came in by hooks\n")


@app.command()
def replay(
    messages: Annotated[list[str] | None, typer.Argument(metavar="[MESSAGE]...", help="Ids of messages.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="All dead letters of the last 30m, 2h, 3d.")
    ] = None,
    tenant: Tenant = "",
    config: Config = None,
) -> None:
    """Send messages again, with the ids that they had."""
    if not messages and since is None:
        raise RequestError("name messages, or a time with --since", param="message")
    start = None if since is None else time.time() - _seconds(since)
    kept, names = open_webhooks(config), messages or []
    came_in = [name for name in names if name.startswith("in-")]
    for name in came_in:
        kept.inbox.replay(name)
        sys.stdout.write(f"{name} waits to begin another run: a server does it\n")
    if len(came_in) == len(names) and since is None:
        return
    count = kept.outbox.replay(tenant, [name for name in names if name not in came_in], start)
    sys.stdout.write(f"{count} messages wait to be sent again: a server sends them, or `pyagent webhooks deliver`\n")


@app.command()
def deliver(config: Config = None) -> None:
    """Send what is due now, of all tenants: a server does so by itself."""
    from pyagent.infrastructure.webhooks.deliveries import Deliveries
    from pyagent.infrastructure.webhooks.sender import Sender

    kept = open_webhooks(config)
    became = asyncio.run(Deliveries(kept, Sender(allows_private=kept.allows_private)).deliver_due())
    counts = Counter(one.state for one in became)
    for one in became:
        if one.state != "delivered":
            sys.stdout.write(f"{_message_line(one)}\n")
    sys.stdout.write(
        f"{counts['delivered']} delivered, {counts['waiting']} to be tried again, {counts['dead']} dead letters\n"
    )


def _seconds(ago: str) -> float:
    match = _AGO.fullmatch(ago.strip())
    if match is None:
        raise RequestError(f"--since takes a time such as 30m, 2h or 3d, got {ago[:40]!r}", param="since")
    return int(match[1]) * _UNIT_SECONDS[match[2]]


def shown(endpoint: Endpoint) -> dict[str, object]:
    """Return an endpoint for programs, without what its URL may hold of a secret."""
    import msgspec

    from pyagent.infrastructure.webhooks.desk import without_secrets

    return msgspec.to_builtins(without_secrets(endpoint))


def line_of(endpoint: Endpoint) -> str:
    """Return an endpoint as a line."""
    from pyagent.infrastructure.webhooks import desk

    return for_terminal(desk.line_of(endpoint))


def _list_messages(messages: Sequence[Delivery], none: str, *, as_json: bool) -> None:
    if as_json:
        write_json(messages)
        return
    for one in messages:
        sys.stdout.write(f"{_message_line(one)}\n")
    if not messages:
        sys.stdout.write(f"{none}\n")


def _message_line(one: Delivery) -> str:
    from pyagent.infrastructure.webhooks.desk import message_line

    return for_terminal(message_line(one))
