"""`pyagent webhooks`: a secret is shown once, and wrong words are answered in one sentence."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.fleets import Custom, echo

from pyagent.cli.root import run
from pyagent.core.errors import PyAgentError
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.testing import ScriptedBackend

NOWHERE = "http://127.0.0.1:9/hook?token=hush-hush"


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder, with private addresses allowed."""
    monkeypatch.setenv("PYAGENT_PATHS__DATA", str(tmp_path))
    monkeypatch.setenv("PYAGENT_WEBHOOKS__PRIVATE", "true")
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["webhooks", *words]) == 0
    return capsys.readouterr().out


def refused(*words: str) -> str:
    with pytest.raises(PyAgentError) as told:
        run(["webhooks", *words])
    return str(told.value)


def test_a_webhook_from_first_to_last(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Added, told of a run, failed, looked at, replayed, given a new secret, removed; the secret shown once."""
    assert "no webhooks: add one" in said(capsys, "list")
    made = json.loads(said(capsys, "add", NOWHERE, "--events", "run.finished", "--json"))
    webhook, secret = made["id"], made["secret"]
    assert secret.startswith("whsec_")

    async def one_run() -> None:
        async with Fleet(ScriptedBackend([]), [Custom("echo", echo)], journal=SqliteJournal(data / "journal")) as fleet:
            await fleet.run_agent("echo", "x")

    asyncio.run(one_run())
    message = json.loads(said(capsys, "waiting", "--json"))[0]["id"]
    assert "0 delivered, 1 to be tried again, 0 dead letters" in said(capsys, "deliver")
    assert "waiting  1 attempts: it cannot be reached" in said(capsys, "waiting")
    assert "no dead letters" in said(capsys, "dead")
    assert said(capsys, "replay", message).startswith("1 messages wait")
    assert said(capsys, "replay", "--since", "2h").startswith("0 messages wait")
    listed = said(capsys, "list") + said(capsys, "list", "--json")
    assert "1 waiting, 0 dead" in listed
    assert secret not in listed
    assert "hush-hush" not in listed
    assert said(capsys, "rotate", webhook).splitlines()[1] != f"secret, shown this once: {secret}"
    assert said(capsys, "rm", webhook) == f"removed {webhook}\n"
    assert "nothing waits" in said(capsys, "waiting")
    assert secret.encode() not in (data / "journal" / "runs.db").read_bytes(), "what is removed is written over"


def test_wrong_words_are_answered_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """What was wrong, what was expected, what to do."""
    assert "did you mean 'run.finished'" in refused("add", NOWHERE, "--events", "run.finishd")
    assert "given as env:NAME or file:PATH" in refused("add", NOWHERE, "--events", "*", "--secret", "whsec_abc")
    assert "expected a URL such as" in refused("add", "nowhere", "--events", "*")
    assert "there is no webhook 'wh-1'" in refused("rm", "wh-1")
    assert refused("replay") == "name messages, or a time with --since"
    assert "such as 30m, 2h or 3d, got 'soon'" in refused("replay", "--since", "soon")
    assert "there is no message 'msg_1'" in refused("replay", "msg_1")
    webhook = said(capsys, "add", NOWHERE, "--events", "*").split()[0]
    assert f"{webhook} did not take it: it cannot be reached" in refused("test", webhook)


def test_what_came_in_is_listed_and_replayed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The inbox of hooks, its dead letters, and one of them begun again."""
    assert said(capsys, "inbox") == "nothing came in by hooks\n"
    journal = SqliteJournal(data / "journal")
    kept, _ = journal.webhooks.inbox.keep("orders", "msg_1", "a task", 10)
    journal.webhooks.inbox.settle(kept, "dead", "its run is failed")
    assert "in-1  orders" in said(capsys, "inbox", "--dead")
    assert json.loads(said(capsys, "inbox", "--json"))[0]["error"] == "its run is failed"
    assert said(capsys, "replay", "in-1") == "in-1 waits to begin another run: a server does it\n"
    assert said(capsys, "inbox", "--dead") == "nothing came in by hooks\n"
    assert "in-1 is waiting: dead letters are replayed" in refused("replay", "in-1")
    assert "there is no message 'in-x'" in refused("replay", "in-x")
    journal.close()
