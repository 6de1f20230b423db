"""Webhooks of runs: told with the run's record, delivered to a real server in order, again where it fails."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.fleets import Custom, echo
from support.receiver import Receiver, receiver
from support.waiting import until, wait_until

from pyagent.core.config import load_settings
from pyagent.core.errors import ConfigError, RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.settings import Webhooks
from pyagent.core.webhooks.messages import Delivery
from pyagent.core.webhooks.signing import key_of, new_secret, verify
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.infrastructure.storage.webhooks.endpoints import Added
from pyagent.infrastructure.webhooks.deliveries import Deliveries
from pyagent.infrastructure.webhooks.sender import Sender
from pyagent.testing import ScriptedBackend

DAY = 86_400.0


class Later:
    """A clock some seconds ahead of the machine's."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@pytest.fixture
def there() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    made = SqliteJournal(tmp_path, webhooks=Webhooks(private=True))
    yield made
    made.close()


async def _broken(context: Context, task: Task) -> object:
    raise ValueError(f"secret {task.text}")


async def _asks(context: Context, task: Task) -> object:
    return await context.ask("Which secret colour?")


def ran(journal: SqliteJournal, agent: str = "echo", tenant: str = "", task: str = "hidden words") -> None:
    """Run one task, however it ends."""

    async def whole() -> None:
        agents = [Custom("echo", echo), Custom("broken", _broken), Custom("asks", _asks)]
        async with Fleet(ScriptedBackend([]), agents, journal=journal) as fleet:
            try:
                async for _ in fleet.run(task, agent=agent, tenant=tenant):
                    pass
            except Exception:
                assert agent != "echo"

    asyncio.run(whole())


def added(journal: SqliteJournal, there: Receiver, events: str = "*", tenant: str = "") -> Added:
    return journal.webhooks.add(tenant, there.url, events.split(","))


def delivered(journal: SqliteJournal, clock: Callable[[], float] = time.time, seconds: float = 5.0) -> list[Delivery]:
    """Deliver what is due once, and return what became of it."""
    sender = Sender(allows_private=journal.webhooks.allows_private, seconds=seconds)
    return asyncio.run(Deliveries(journal.webhooks, sender, clock=clock).deliver_due())


def test_a_run_is_told_in_order_and_signed(journal: SqliteJournal, there: Receiver) -> None:
    """Start and end, each with an id, a signature by the webhook's secret, and no word of the task or the answer."""
    _, secret = added(journal, there)
    ran(journal)
    ran(journal, "broken")
    ran(journal, "asks")
    assert {one.state for one in delivered(journal)} == {"delivered"}
    bodies = [json.loads(body) for _, body in there.came]
    kinds = [body["type"] for body in bodies]
    assert kinds[:4] == ["run.started", "run.finished", "run.started", "run.failed"]
    assert kinds[4:] == ["run.started", "run.question", "run.needs_answer"]
    assert [body["data"]["state"] for body in bodies[:4]] == ["running", "done", "running", "failed"]
    assert {body["data"]["run"] for body in bodies} == {row.run for row in journal.runs()}
    assert bodies[3]["data"]["error"] == "AgentError"
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "webhook_receiver.py"))
    for headers, body in there.came:
        assert example["is_genuine"](headers, body, secret)
        assert not example["is_genuine"](headers, body + b" ", secret)
        assert verify(headers, body, [key_of(secret)], time.time()).id == headers["webhook-id"]
        assert b"hidden" not in body
        assert b"secret" not in body
    assert delivered(journal) == []


def test_a_server_delivers_by_itself(journal: SqliteJournal, there: Receiver) -> None:
    """From its start on, what any process wrote; when it ends, what it was about is free for the next one."""
    added(journal, there, "run.finished")
    ran(journal)

    async def serving() -> None:
        agents = AgentBackend(lambda: Fleet(ScriptedBackend([]), [Custom("echo", echo)], journal=journal))
        agents.fleet()
        agents.start_watching()
        await until(lambda: len(there.came) == 1)
        there.plays = ["hold"]
        await agents.fleet().run_agent("echo", "x")
        await until(lambda: len(there.came) == 2)
        await agents.close()

    asyncio.run(serving())
    assert [one.state for one in journal.webhooks.outbox.deliveries("")] == ["waiting", "delivered"]
    there.may_answer.set()
    assert [one.state for one in delivered(journal)] == ["delivered"]
    assert there.ids[1] == there.ids[2]


def test_only_the_events_and_the_tenant_that_were_asked_for(journal: SqliteJournal, there: Receiver) -> None:
    """One tenant's webhook hears nothing of another's runs, and is not there for another."""
    webhook, _ = added(journal, there, "run.finished", "ann")
    ran(journal, tenant="ann")
    ran(journal, tenant="bob")
    ran(journal)
    assert [one.type for one in delivered(journal)] == ["run.finished"]
    assert journal.webhooks.endpoints("bob") == []
    [message] = journal.webhooks.outbox.deliveries("ann")
    for of_bob in (
        lambda: journal.webhooks.endpoint("bob", webhook.id),
        lambda: journal.webhooks.remove("bob", webhook.id),
        lambda: journal.webhooks.rotate("bob", webhook.id),
        lambda: journal.webhooks.enable("bob", webhook.id),
        lambda: journal.webhooks.outbox.replay("bob", [message.id]),
    ):
        with pytest.raises(RequestError, match="there is no"):
            of_bob()
    assert journal.webhooks.outbox.deliveries("bob") == []
    assert journal.webhooks.outbox.replay("bob", since=0.0) == 0


@pytest.mark.parametrize(
    ("play", "said"),
    [
        (500, "status 500"),
        ((302, {"location": "http://127.0.0.1:1/"}), "status 302; redirects are not followed"),
        ("garbage", "what it answered is no HTTP"),
        ("drop", "what it answered is no HTTP"),
        ("hold", "did not answer within"),
    ],
)
def test_what_an_endpoint_does_not_take_is_tried_again(
    journal: SqliteJournal, there: Receiver, play: int | str, said: str
) -> None:
    """With the same id, after a wait; what comes behind it waits, so that the order is kept."""
    added(journal, there)
    there.plays = [play]
    ran(journal)
    [first] = delivered(journal, seconds=0.2 if play == "hold" else 5.0)
    assert (first.state, first.attempts) == ("waiting", 1)
    assert said in first.error
    assert first.due_at is not None
    assert 3.9 < first.due_at - time.time() < 6.1
    assert delivered(journal) == []
    there.may_answer.set()
    clock = Later()
    clock.ahead = 7.0
    assert [one.type for one in delivered(journal, clock)] == ["run.started", "run.finished"]
    assert there.ids[0] == there.ids[1] != there.ids[2]


def test_retry_after_is_kept(journal: SqliteJournal, there: Receiver) -> None:
    """An endpoint that asks for a minute is left alone for it."""
    added(journal, there)
    there.plays = [(429, {"retry-after": "60"})]
    ran(journal)
    clock = Later()
    assert len(delivered(journal, clock)) == 1
    clock.ahead = 50.0
    assert delivered(journal, clock) == []
    clock.ahead = 61.0
    assert len(delivered(journal, clock)) == 2


def test_a_message_that_is_never_taken_holds_up_the_others_for_minutes_alone(
    journal: SqliteJournal, there: Receiver
) -> None:
    """After five attempts those behind it go first; after thirteen it is a dead letter, which can be replayed."""
    added(journal, there, "run.started")
    ran(journal)
    ran(journal)
    clock = Later()
    there.plays = [500] * 5
    for _ in range(5):
        clock.ahead += 400.0
        became = delivered(journal, clock)
    assert [one.state for one in became] == ["waiting", "delivered"]
    there.otherwise = 500
    while journal.webhooks.outbox.deliveries("", "waiting"):
        clock.ahead += 52_000.0
        delivered(journal, clock)
    [dead] = journal.webhooks.outbox.deliveries("", "dead")
    assert (dead.attempts, dead.status) == (13, 500)
    there.otherwise = 204
    assert journal.webhooks.outbox.replay("", [dead.id]) == 1
    [again] = delivered(journal, clock)
    assert (again.id, again.state) == (dead.id, "delivered")
    assert there.ids[-1] == dead.id


def test_an_endpoint_that_takes_nothing_for_days_is_disabled(journal: SqliteJournal, there: Receiver) -> None:
    """With the reason said; what comes then are dead letters, and `enable` and `replay` bring them back in order."""
    webhook, _ = added(journal, there, "run.started")
    there.otherwise = 500
    clock = Later()
    ran(journal)
    delivered(journal, clock)
    clock.ahead = 5 * DAY + 60
    [last] = delivered(journal, clock)
    assert last.state == "dead"
    reason = journal.webhooks.endpoint("", webhook.id).reason
    assert reason == "it took nothing for 5 days; at last it answered with status 500"
    ran(journal)
    assert next(one.error for one in journal.webhooks.outbox.deliveries("", "dead")) == "the endpoint is disabled"
    with pytest.raises(RequestError, match=r"is disabled: it took nothing.*enable it first"):
        journal.webhooks.outbox.replay("", [last.id])
    there.otherwise = 204
    assert journal.webhooks.enable("", webhook.id).reason == ""
    assert journal.webhooks.outbox.replay("", since=0.0) == 2
    came = [one.id for one in delivered(journal, clock)]
    assert came == there.ids[-2:]
    assert came[0] == last.id


def test_gone_disables_at_once(journal: SqliteJournal, there: Receiver) -> None:
    """410 says that it will not be back."""
    webhook, _ = added(journal, there)
    there.otherwise = 410
    ran(journal)
    delivered(journal)
    assert journal.webhooks.endpoint("", webhook.id).reason == "it answered 410: it is gone"
    assert len(journal.webhooks.outbox.deliveries("", "dead")) == 2


def test_private_addresses_are_refused(tmp_path: Path, there: Receiver) -> None:
    """By name when the webhook is added, and by what the name leads to when it is sent."""
    journal = SqliteJournal(tmp_path)
    with pytest.raises(RequestError, match=r"https://.*webhooks\.private"):
        added(journal, there)
    with pytest.raises(RequestError, match="no password"):
        journal.webhooks.add("", "https://ann:pw@example.org/", ["*"])
    with pytest.raises(RequestError, match=r"no event 'run.finish'; did you mean 'run\.finished'"):
        journal.webhooks.add("", "https://example.org/", ["run.finish"])
    journal.webhooks.add("", there.url.replace("http:", "https:"), ["run.started"])
    ran(journal)
    [one] = delivered(journal)
    assert "127.0.0.1, which is not public" in one.error
    assert there.came == []
    journal.close()


def test_a_rotated_secret_signs_beside_the_old_one(journal: SqliteJournal, there: Receiver) -> None:
    """Both verify for a day; a secret by reference is read when it signs, and one that is missing is said."""
    webhook, old = added(journal, there, "run.started")
    new = journal.webhooks.rotate("", webhook.id).secret
    ran(journal)
    delivered(journal)
    for secret in (old, new):
        verify(*there.came[0], [key_of(secret)], time.time())
    kept = str(journal.webhooks.endpoints(""))
    assert old[6:] not in kept
    assert new[6:] not in kept
    missing, _ = journal.webhooks.add("", there.url, ["run.finished"], "env:PYAGENT_TEST_NO_SUCH_SECRET")
    ran(journal)
    [failed] = [one for one in delivered(journal) if one.endpoint == missing.id]
    assert failed.error == "its secret cannot be used: env:PYAGENT_TEST_NO_SUCH_SECRET is not set"


def test_a_host_that_is_not_known_is_told_without_its_name() -> None:
    """What an attempt came to is understood, and has nothing of the URL, which may hold a secret."""

    async def main() -> str:
        sender = Sender(allows_private=True)
        try:
            secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
            return (await sender.send("http://no-such-host.invalid/s3cret", [secret], "msg_1", b"{}")).error
        finally:
            await sender.close()

    assert asyncio.run(main()) == "the name of its host is not known"


def test_two_processes_deliver_each_message_once(tmp_path: Path, there: Receiver) -> None:
    """While one delivers to an endpoint the other does not; when it is done the other goes on in order."""
    first, second = (SqliteJournal(tmp_path, webhooks=Webhooks(private=True)) for _ in range(2))
    added(first, there)
    ran(first)
    [claim] = first.webhooks.outbox.claim(time.time(), ())
    assert second.webhooks.outbox.claim(time.time(), ()) == []
    first.close()  # as its death would
    [same] = second.webhooks.outbox.claim(time.time(), ())
    assert same.id == claim.id
    second.webhooks.outbox.release(same.endpoint)
    assert len(delivered(second)) == 2
    second.close()


def test_only_so_many_are_leased_as_can_be_sent_at_once(journal: SqliteJournal, there: Receiver) -> None:
    """The rest stays for the next turn, or for another process, and all is delivered."""
    for _ in range(20):
        added(journal, there, "run.started")
    ran(journal)
    claims = journal.webhooks.outbox.claim(time.time(), (), 3)
    assert len({claim.endpoint for claim in claims}) == 3
    for claim in claims:
        journal.webhooks.outbox.release(claim.endpoint)
    assert [one.state for one in delivered(journal)] == ["delivered"] * 20
    assert len(set(there.ids)) == 20


def test_what_is_old_or_too_much_is_forgotten(
    journal: SqliteJournal, there: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was delivered a week ago, what died a month ago, the oldest of too many; one too many to wait is dead."""
    added(journal, there, "run.started")
    outbox = journal.webhooks.outbox
    for _ in range(3):
        ran(journal)
    delivered(journal)
    monkeypatch.setattr("pyagent.infrastructure.storage.webhooks.outbox.MAX_MESSAGES", 2)
    for _ in range(3):
        ran(journal)
    assert [one.error for one in outbox.deliveries("", "dead")] == ["2 messages wait already"]
    outbox.prune(time.time())
    assert [one.state for one in outbox.deliveries("")] == ["dead", "waiting", "waiting", "delivered", "delivered"]
    outbox.prune(time.time() + 8 * DAY)
    assert [one.state for one in outbox.deliveries("")] == ["dead", "waiting", "waiting"]
    outbox.prune(time.time() + 31 * DAY)
    assert [one.state for one in outbox.deliveries("")] == ["waiting", "waiting"]


def test_webhooks_stand_in_settings_too(tmp_path: Path, there: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a secret by reference; a changed URL is taken over, and only the settings take one out."""
    monkeypatch.setenv("WEBHOOK_TEST_SECRET", secret := new_secret())
    file = tmp_path / "pyagent.toml"
    table = '[webhooks]\nprivate = true\n[webhooks.endpoints.ci]\nevents = ["run.finished"]\n'
    for url in ("https://old.example.org/", there.url):
        file.write_text(f'{table}url = "{url}"\nsecret = "env:WEBHOOK_TEST_SECRET"')
        journal = SqliteJournal(tmp_path / "runs", webhooks=load_settings(file).settings.webhooks)
        ran(journal)
        [one] = journal.webhooks.endpoints("")
        assert (one.id, one.url, one.origin) == ("ci", url, "settings")
        with pytest.raises(RequestError, match=r"take \[webhooks\.endpoints\.ci\] out"):
            journal.webhooks.remove("", "ci")
        if url == there.url:
            assert [one.state for one in delivered(journal)] == ["delivered"] * 2
            verify(*there.came[0], [key_of(secret)], time.time())
        journal.close()
    bare = SqliteJournal(tmp_path / "runs")
    bare.webhooks.remove("", "ci")
    assert bare.webhooks.endpoints("") == []
    bare.close()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ('url = "https://x.org"\nevents = ["*"]', "expected a table with `url`, `events` and `secret`"),
        ('url = "https://x.org"\nevents = ["run.end"]\nsecret = "env:A"', "got 'run.end'"),
        ('url = "https://x.org"\nevents = []\nsecret = "env:A"', "got none"),
        ('url = "https://x.org"\nevents = ["*"]\nsecret = "whsec_abc"', "never the secret itself"),
        ('url = "https://a:b@x.org"\nevents = ["*"]\nsecret = "env:A"', "without a password"),
        ('url = "https://x.org"\nevents = ["*"]\nsecret = "env:A"\nurls = 1', "expected url in the webhook ci"),
    ],
)
def test_settings_of_webhooks_are_checked(tmp_path: Path, fields: str, said: str) -> None:
    """Each mistake is named; a secret is never told."""
    file = tmp_path / "pyagent.toml"
    file.write_text(f"[webhooks.endpoints.ci]\n{fields}")
    with pytest.raises(ConfigError) as told:
        load_settings(file)
    assert said in str(told.value)
    assert "whsec_abc" not in str(told.value)


_KILLED = """
import asyncio, sys
from pathlib import Path
from support.fleets import Custom, echo
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.settings import Webhooks
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.infrastructure.webhooks.deliveries import Deliveries
from pyagent.infrastructure.webhooks.sender import Sender
from pyagent.testing import ScriptedBackend

async def main():
    journal = SqliteJournal(Path(sys.argv[1]), webhooks=Webhooks(private=True))
    async with Fleet(ScriptedBackend([]), [Custom("echo", echo)], journal=journal) as fleet:
        for _ in range(5):
            async for _ in fleet.run("x", agent="echo"):
                pass
        await Deliveries(journal.webhooks, Sender(allows_private=True)).run()

asyncio.run(main())
"""


def test_kill_9_loses_nothing(journal: SqliteJournal, there: Receiver, tmp_path: Path) -> None:
    """A process is killed while an endpoint has taken a message and not said so: it comes again by its id, then all
    others, once each."""
    added(journal, there)
    there.plays = [204, 204, "hold"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    process = subprocess.Popen([sys.executable, "-c", _KILLED, str(tmp_path)], env=environment)
    try:
        wait_until(lambda: len(there.came) == 3)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    there.may_answer.set()
    assert {one.state for one in delivered(journal)} == {"delivered"}
    ids = there.ids
    assert ids[2] == ids[3]
    assert len(ids) == 11
    assert len(set(ids)) == 10
    assert [json.loads(body)["type"] for _, body in there.came[4:]] == [
        "run.finished",
        *["run.started", "run.finished"] * 3,
    ]
