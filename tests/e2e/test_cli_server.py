"""`pyagent stop` and `pyagent bench`: a server is found and ended gracefully, and a model's speed is told."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import httpx
import msgspec
import pytest
from support.command_line import pyagent, server_started, started
from support.waiting import wait_until

from pyagent.cli.bench import Round, drafts_line


def _wait_until_found(env: dict[str, str], count: int) -> None:
    wait_until(lambda: len(list(Path(env["PYAGENT_PATHS__DATA"], "servers").glob("*.json"))) >= count)


def _port(url: str) -> str:
    return url.rpartition(":")[2]


def test_stop_lets_answers_finish(chain: str, environment: dict[str, str], tmp_path: Path) -> None:
    """The one server that runs is ended with code 0, and the answer it was giving is whole."""
    process, url = server_started("--chain", chain, env=environment)
    _wait_until_found(environment, 1)
    slowly = {"stream": True, "messages": [{"role": "user", "content": f"until {tmp_path / 'end'}"}]}
    with (
        httpx.Client(verify=False, timeout=60) as http,
        http.stream("POST", f"{url}/v1/chat/completions", json=slowly) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        stopping = started("stop", env=environment)
        wait_until(lambda: http.get(f"{url}/ready").status_code != 200)
        (tmp_path / "end").touch()
        assert any('"finish_reason":"stop"' in line for line in lines)
    shown, errors = stopping.communicate(timeout=60)
    assert (stopping.returncode, shown) == (0, f"stopped the server on 127.0.0.1:{_port(url)}\n"), errors
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert not list(Path(environment["PYAGENT_PATHS__DATA"], "servers").iterdir())


def test_stop_says_which_servers_run(chain: str, environment: dict[str, str]) -> None:
    """None is an error, several want --port, and one that was killed is none."""
    none = pyagent("stop", env=environment)
    assert (none.returncode, "no server of yours runs" in none.stderr) == (1, True)
    first, first_url = server_started("--chain", chain, env=environment)
    second, second_url = server_started("--chain", chain, env=environment)
    _wait_until_found(environment, 2)
    several = pyagent("stop", env=environment)
    assert several.returncode == 1
    assert _port(first_url) in several.stderr
    assert _port(second_url) in several.stderr
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    assert pyagent("stop", "--port", _port(first_url), env=environment).returncode == 1
    assert pyagent("stop", env=environment).stdout == f"stopped the server on 127.0.0.1:{_port(second_url)}\n"
    second.communicate(timeout=60)
    assert second.returncode == 0


@pytest.mark.parametrize("as_json", [False, True])
def test_bench_measures_prefill_and_decode(as_json: bool, environment: dict[str, str], tiny_model_path: Path) -> None:
    """The embedded engine's tokens per second are told for people and as JSON, from prompts of the size asked for."""
    arguments = ["--model", str(tiny_model_path), "--rounds", "2", "--prompt-words", "20", "--tokens", "8"]
    done = pyagent("bench", *arguments, *(["--json"] if as_json else []), env=environment)
    assert done.returncode == 0, done.stderr
    if not as_json:
        assert re.search(r"prefill +[\d,.]+ tok/s .*TTFT [\d.]+ s", done.stdout)
        assert "decode " in done.stdout
        return
    rounds = json.loads(done.stdout)
    assert len(rounds) == 2
    assert all(each["prompt_tokens"] > 20 and each["prefill_tokens_per_second"] > 0 for each in rounds)
    assert all(0 <= each["accepted_tokens"] <= each["draft_tokens"] for each in rounds)


def test_bench_tells_what_drafts_gave() -> None:
    """Tokens that took no step of their own, of all rounds; no line where none was proposed."""

    def measured(drafts: int, right: int) -> Round:
        rates = {"prefill_tokens_per_second": 1.0, "decode_tokens_per_second": None, "ttft_seconds": 0.1}
        counts = {"prompt_tokens": 9, "output_tokens": 1_000, "draft_tokens": drafts, "accepted_tokens": right}
        return msgspec.convert({"backend": "native:m", **rates, **counts}, Round)

    assert (
        drafts_line([measured(900, 400), measured(300, 100)]) == "drafts   500 of 1,200 accepted, 25% of the tokens\n"
    )
    assert drafts_line([measured(0, 0)]) == ""
