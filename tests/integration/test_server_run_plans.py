"""Runs over HTTP that a model plans, that a client approves, and that have a budget of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.run_server import ended, followed, kinds, run_server

from pyagent.infrastructure.server.agents import MAX_TASK_CHARS

MINE = '[[steps]]\nname = "mine"\nagent = "echo"\ntask = "my own"\n'


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("runs")
    with run_server(folder / "journal", root=folder) as served, served.client() as client:
        yield client


def planned(http: httpx.Client, **fields: object) -> dict[str, Any]:
    """Start a run with a plan, and return it when it has ended or waits."""
    answer = http.post("/v1/runs", json={"task": "the task", **fields})
    assert answer.status_code == 201, answer.text
    return ended(http, answer.json()["id"])


@pytest.mark.parametrize("plan", [True, "auto"])
def test_a_plan_is_made_and_run_unseen(http: httpx.Client, plan: object) -> None:
    """`plan` true or `auto` makes a plan and runs it without a question."""
    run = planned(http, plan=plan)
    assert (run["state"], run["output"]) == ("done", "planned!")


def test_without_a_plan_the_task_goes_to_its_agent(http: httpx.Client) -> None:
    """`plan` false plans nothing, also for a task that names an agent."""
    run = planned(http, plan=False, agent="echo")
    assert run["output"] == "the task!"
    assert "planner" not in str(followed(http, run["id"]))


@pytest.mark.parametrize(
    ("answer", "told"), [("accept", ("done", "planned!")), (MINE, ("done", "my own!")), ("refuse", ("failed", None))]
)
def test_a_plan_that_is_shown_is_answered_as_other_questions(
    http: httpx.Client, answer: str, told: tuple[str, object]
) -> None:
    """With `ask` the run ends with the plan as its question; the answer accepts it, puts another or refuses it."""
    run = planned(http, plan="ask")
    assert run["state"] == "needs_answer"
    [question] = run["questions"]
    assert question["kind"] == "plan"
    assert 'agent = "echo"' in question["text"]
    taken = http.post(f"/v1/runs/{run['id']}/answer", json={"answer": answer})
    assert taken.status_code == 200, taken.text
    run = ended(http, run["id"])
    assert (run["state"], run["output"]) == told


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("yes", "neither accept nor refuse, and no plan that can run"),
        (MINE.replace("echo", "nobody"), "there is no agent 'nobody'"),
        (MINE + 'files = ["/etc/passwd"]\n', "/etc/passwd"),
        (f"{MINE}# {'x' * MAX_TASK_CHARS}", f"a plan has up to {MAX_TASK_CHARS} characters"),
    ],
)
def test_a_plan_of_a_clients_own_is_checked_when_it_comes(http: httpx.Client, answer: str, told: str) -> None:
    """An answer that is no plan that can run is refused with its fault, and the run still waits."""
    run = planned(http, plan="ask")
    refused = http.post(f"/v1/runs/{run['id']}/answer", json={"answer": answer})
    assert refused.status_code in {400, 404, 422}, refused.text
    assert told in refused.json()["error"]["message"]
    assert http.get(f"/v1/runs/{run['id']}").json()["state"] == "needs_answer"


def test_a_plan_waits_on_the_run_where_it_may(http: httpx.Client) -> None:
    """With `waits_for_answers` the same process goes on after the answer."""
    run = http.post("/v1/runs", json={"task": "x", "plan": "ask", "waits_for_answers": True}).json()["id"]
    with http.stream("GET", f"/v1/runs/{run}/events") as events:
        next(line for line in events.iter_lines() if "question_asked" in line)
    assert http.post(f"/v1/runs/{run}/answer", json={"answer": "accept"}).status_code == 200
    assert ended(http, run)["output"] == "planned!"
    assert "run_resumed" not in kinds(followed(http, run))


def test_an_equal_request_with_a_plan_is_the_same_run(http: httpx.Client) -> None:
    """An idempotency key stands for a run with its plan and budget."""
    headers = {"Idempotency-Key": "p"}
    body = {"task": "x", "plan": "auto", "budget": {"tokens": 100_000}}
    first = http.post("/v1/runs", json=body, headers=headers)
    again = http.post("/v1/runs", json=body, headers=headers)
    other = http.post("/v1/runs", json=body | {"plan": False}, headers=headers)
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 422)
    assert first.json()["id"] == again.json()["id"]


def test_a_run_ends_by_its_own_budget(http: httpx.Client) -> None:
    """`budget` bounds the run, and the error names the field."""
    run = planned(http, agent="ask", budget={"tokens": 5})
    assert run["state"] == "failed"
    assert run["error"]["reason"] == "budget_exhausted"
    assert "raise budget.tokens" in run["error"]["error"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"plan": "maybe"}, "plan"),
        ({"plan": "ask", "agent": "echo"}, "a plan is made for one task"),
        ({"budget": {"tokens": 0}}, "budget.tokens is a number from 1"),
        ({"budget": {"coins": 1}}, "coins"),
    ],
)
def test_what_is_no_plan_or_budget_is_refused(http: httpx.Client, fields: dict[str, object], told: str) -> None:
    """A wrong field is named."""
    refused = http.post("/v1/runs", json={"task": "x", **fields})
    assert refused.status_code in {400, 422}
    assert told in refused.json()["error"]["message"]
