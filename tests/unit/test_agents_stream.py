"""The stream agent: webhooks within a run, for its tenant alone, and nothing secret in what is journalled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.receiver import receiver

import pyagent.fleet
from pyagent.cli.agent_options import task_of
from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.file_access import FileAccess
from pyagent.core.fleet.journal import Journal
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.settings import Settings, Webhooks
from pyagent.core.webhooks.actions import WebhookReport
from pyagent.core.webhooks.signing import key_of, new_secret, signed_headers
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.logic.agents import stream
from pyagent.logic.agents.stream import CheckedPayload, StreamAgent
from pyagent.testing import ScriptedBackend

NOWHERE = "http://127.0.0.1:9/hook?token=hush-hush"
SCHEMA = '{"type": "object", "required": ["a"]}'


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    made = SqliteJournal(tmp_path, webhooks=Webhooks(private=True))
    yield made
    made.close()


def report(journal: Journal | None, *words: str, tenant: str = "", limited: bool = False) -> WebhookReport:
    """Run the agent as its command line does, for a tenant."""
    fleet = Fleet(ScriptedBackend([]), [StreamAgent()], journal=journal)
    access = FileAccess(is_limited=limited)
    task = task_of(StreamAgent(), list(words), [])

    async def run() -> object:
        last = None
        async for event in fleet.run(task, agent="stream", tenant=tenant, file_access=access):
            last = event
        return getattr(last, "output", None)

    found = asyncio.run(run())
    assert isinstance(found, WebhookReport)
    return found


def test_webhooks_are_seen_to_within_runs(journal: SqliteJournal) -> None:
    """Added once however often that is asked, listed, shown, replayed, removed; of one tenant alone."""
    assert report(journal, "list my webhooks").text == "there are no webhooks"
    options = ("--action", "add", "--url", NOWHERE, "--events", "run.started")
    made = report(journal, *options)
    assert report(journal, *options).webhooks[0].id == made.webhooks[0].id
    webhook = made.webhooks[0].id
    assert "token=[redacted]" in made.text
    assert f"`pyagent webhooks rotate {webhook}` makes its secret" in made.text
    assert report(journal, "which webhooks are there?", tenant="ann").text == "there are no webhooks"
    with pytest.raises(RequestError, match="there is no webhook"):
        report(journal, "--action", "remove", "--webhook", webhook, tenant="ann")
    waiting = report(journal, "which webhooks are waiting?").messages
    assert [one.type for one in waiting] == ["run.started"] * len(waiting)
    assert report(journal, "--action", "replay", "--messages", waiting[0].id).text == "1 messages wait to be sent again"
    assert report(journal, "--action", "show", "--state", "dead").text == "no messages are dead"
    assert report(journal, "--action", "remove", "--webhook", webhook).text == f"removed {webhook}"


def test_no_secret_is_in_what_is_journalled(journal: SqliteJournal, tmp_path: Path) -> None:
    """The secret that signs is in no record of the run that made it."""
    webhook = report(journal, "--action", "add", "--url", "https://x.org/", "--events", "*").webhooks[0].id
    _, [secret] = journal.webhooks.signing_secrets("", webhook)
    for row in journal.runs():
        for record in journal.replay(row.run):
            assert secret[6:].encode() not in msgspec.json.encode(record, enc_hook=str)


def test_a_webhook_is_tried(journal: SqliteJournal) -> None:
    """What it answers is told, and is no failure of the run."""
    with receiver() as there:
        there.plays = [204, 500]
        made = report(journal, "--action", "add", "--url", there.url, "--events", "run.failed").webhooks[0].id
        tried = [report(journal, "--action", "test", "--webhook", made) for _ in range(2)]
    assert [one.is_right for one in tried] == [True, False]
    assert tried[1].text == f"{made} did not take it: it answered with status 500"


def test_signatures_are_verified_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By a secret that is named; what is not genuine is told and no failure. Clients of a server may not name one."""
    secret, body = new_secret(), b'{"a": 1}'
    monkeypatch.setenv("WEBHOOK_TEST_SECRET", secret)
    signed = signed_headers([key_of(secret)], "msg_1", int(time.time()), body)
    options = ["--action", "verify", "--secret", "env:WEBHOOK_TEST_SECRET", "--id", "msg_1"]
    options += ["--timestamp", signed["webhook-timestamp"], "--signature", signed["webhook-signature"]]
    assert report(None, *options, body.decode()).is_right is True
    wrong = report(None, *options, "--body", '{"a": 2}')
    assert wrong.is_right is False
    assert wrong.text.startswith("not genuine: no signature")
    with pytest.raises(RequestError, match="takes a secret of this machine"):
        report(None, *options, body.decode(), limited=True)
    for reference, said in (("whsec_abc", "env:NAME or file:PATH, never itself"), ("env:NO_SUCH", "is not set")):
        with pytest.raises(RequestError, match=said):
            report(None, "--action", "verify", "--secret", reference, "--signature", "v1,x", "body")


def test_payloads_are_validated(tmp_path: Path) -> None:
    """By a schema that is given or in a file; models have it as a tool."""
    file = tmp_path / "schema.json"
    file.write_text(SCHEMA)
    for schema in (SCHEMA, str(file)):
        assert report(None, "--action", "validate", "--schema", schema, '{"a": 1}').is_right is True
        assert "'a' is a required property" in report(None, "--action", "validate", "--schema", schema, "{}").text
    with pytest.raises(RequestError, match="the payload is not"):
        report(None, "--action", "validate", "--schema", SCHEMA, "no json")
    with pytest.raises(RequestError, match="the schema is not"):
        report(None, "--action", "validate", "--schema", "{no json", "{}")
    with pytest.raises(RequestError, match="no file or folder"):
        report(None, "--action", "validate", "--schema", str(tmp_path / "missing"), "{}")
    [tool] = stream.pyagent_register_tools()
    said = asyncio.run(tool.function(CheckedPayload("{}", SCHEMA)))
    assert said == "it does not follow the schema: the value: 'a' is a required property"


def test_what_needs_a_journal_says_so(journal: SqliteJournal) -> None:
    """Without one on disk there are no webhooks; a text about something else is declined."""
    with pytest.raises(RequestError, match="whose journal is on disk"):
        report(None, "list webhooks")
    with pytest.raises(RequestError, match=r"stream declines: .*by an action"):
        report(None, "hello")
    with pytest.raises(RequestError, match="limit is from 1"):
        report(journal, "--action", "show", "--limit", "0")


@pytest.mark.parametrize(
    ("text", "is_asked"),
    [
        ("list my webhooks", True),
        ("Which webhooks failed today?", True),
        ("Write an essay on webhooks", False),
        ("what is a webhook good for, and how would I design one for a shop that sells bread and " + "x" * 200, False),
    ],
)
def test_agent_takes_what_asks_to_see_webhooks(text: str, is_asked: bool) -> None:
    """The rule is narrow."""
    assert bool(StreamAgent().score(Task(text=text))) is is_asked


def test_a_run_replays_without_doing_it_again(journal: SqliteJournal) -> None:
    """What was done to webhooks is journalled as a call of a tool: a check of the run is answered by its record."""
    with receiver() as there:
        made = report(journal, "--action", "add", "--url", there.url, "--events", "run.question").webhooks[0].id
        report(journal, "--action", "test", "--webhook", made)
        fleet = pyagent.fleet.Fleet(Settings(), backend=ScriptedBackend([]), agents=[StreamAgent()], journal=journal)
        checked = [asyncio.run(fleet.check_replay(row.run)) for row in journal.runs()]
        assert [one.difference for one in checked] == ["", ""]
        assert len(there.came) == 1
