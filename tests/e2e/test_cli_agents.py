"""The built-in agents as people use them: what README shows, options beside a path, what a file says."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from support.command_line import pyagent

from pyagent.core.settings import Settings
from pyagent.fleet import Fleet
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import ScriptedBackend, openai_server, serve

EXAMPLES = Path(__file__).parents[2] / "examples"


def _code(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "a.py").write_text("def f(x):\n    return x\n\n\ndef g(x):\n    return x\n")
    (folder / "inner" / "broken.py").write_text("def (:\n")
    (folder / "outside.py").write_text("def h(x):\n    return x\n")


@pytest.mark.parametrize(
    ("options", "num_functions"), [(["--top", "1"], 1), (["--top=0"], 0), ([], 2)], ids=["top 1", "top 0", "none"]
)
@pytest.mark.parametrize("is_path_first", [True, False])
def test_code_health_keeps_its_path_beside_options(
    options: list[str],
    num_functions: int,
    is_path_first: bool,
    chain: str,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    """`pyagent agent code-health PATH --top 2` looks at PATH, wherever the option stands."""
    _code(tmp_path)
    words = ["inner", *options] if is_path_first else [*options, "inner"]
    done = pyagent("agent", "code-health", *words, "--json", "--chain", chain, env=environment)
    assert done.returncode == 0, done.stderr
    health = json.loads(done.stdout)
    assert [Path(file["path"]).name for file in health["files"]] == ["a.py", "broken.py"]
    assert len(health["most_complex"]) == num_functions


def test_code_health_names_what_it_cannot_read(chain: str, environment: dict[str, str], tmp_path: Path) -> None:
    """The text names unreadable files and shows the maintainability of the others."""
    _code(tmp_path)
    shown = pyagent("agent", "code-health", "inner", "--chain", chain, env=environment).stdout
    assert "unreadable: inner/broken.py" in shown
    assert "maintainability" in shown


@pytest.mark.parametrize(
    ("question", "answer"),
    [("100 000 * 2", "100000 * 2 = 200000"), ("6 choose 2", "6 choose 2 = 15"), ("3^-1 mod 11", "3^-1 mod 11 = 4")],
)
def test_run_computes_without_a_model(question: str, answer: str, environment: dict[str, str]) -> None:
    """Formulas go to math and are read by its grammar: there is no model to ask at this address."""
    done = pyagent("run", question, "--chain", "openai:http://127.0.0.1:9/v1", env=environment)
    assert done.returncode == 0, done.stderr
    assert answer in done.stdout


@pytest.mark.model
def test_question_about_a_contract_is_answered_from_its_text(smollm2_path: Path, environment: dict[str, str]) -> None:
    """README's example: with the smallest model the clause on pets is found and quoted with its line."""
    question = "What does this contract say about pets?"
    lease = EXAMPLES / "lease.txt"
    done = pyagent("run", question, "--file", str(lease), "--chain", f"native:{smollm2_path}", env=environment)
    assert done.returncode == 0, done.stderr
    assert "lease.txt:30" in done.stdout
    assert "The Tenant may keep one cat. Dogs are not allowed" in done.stdout
    assert "cleaning fee of 300 dollars" in done.stdout


def test_reasoning_offers_the_tools_that_are_named(environment: dict[str, str]) -> None:
    """`pyagent agent reasoning --tools calculator` lets the model call the calculator; an unknown tool is an error."""
    with openai_server(arguments={"question": "6*7"}) as server:
        words = ["agent", "reasoning", "--tools", "calculator", "What is 6 times 7?", "--chain", f"openai:{server.url}"]
        done = pyagent(*words, env=environment)
        unknown = pyagent("agent", "reasoning", "--tools", "calculater", "x", *words[-2:], env=environment)
    assert done.returncode == 0, done.stderr
    assert 'calculator({"question": "6*7"}): 6*7 = 42' in done.stdout
    assert "Hello from the fake." in done.stdout
    assert unknown.returncode != 0
    assert "there is no tool 'calculater'; did you mean 'calculator'?" in unknown.stderr


def test_reasoning_takes_a_strategy(environment: dict[str, str]) -> None:
    """`pyagent agent reasoning --strategy NAME` ends with an answer and says why, though no critique can be read."""
    with openai_server() as server:
        words = ["agent", "reasoning", "--strategy", "reflection", "6 times 7?", "--chain", f"openai:{server.url}"]
        done = pyagent(*words, "--json", env=environment)
        refused = pyagent(*words, "--samples", "3", env=environment)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["strategy"], told["answer"], told["num_calls"]) == ("reflection", "Hello from the fake.", 2)
    assert told["ended"]
    assert "samples is for the strategy self-consistency" in refused.stderr


def test_reasoning_by_a_strategy_is_reached_over_http() -> None:
    """A message to `agent:reasoning` that is JSON has the question, the strategy and its options."""
    backend = ScriptedBackend(lambda one: f"Answer: {7 if one.sampling.seed == 1 else 8}")
    app = create_app(backend, agents=AgentBackend(lambda: Fleet(Settings(), backend=backend)))
    asked = {"question": "How many?", "strategy": "debate", "rounds": 1}
    body = {"model": "agent:reasoning", "messages": [{"role": "user", "content": json.dumps(asked)}]}
    with serve(app) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
    message = answer["choices"][0]["message"]
    assert "round 1: 8 | 7 | 8" in message["reasoning_content"]
    assert "Answer: 8  (2 of 3 debaters agree)" in message["content"]
