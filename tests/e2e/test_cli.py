"""The `pyagent` command as a process: what it prints, how it ends, and what it does when interrupted.

The chain is an OpenAI-compatible server on loopback with a scripted model, reached by the real client.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from support.command_line import Terminal, pyagent, server_started, started
from support.waiting import wait_until


def test_cli_help_lists_every_command(environment: dict[str, str]) -> None:
    """Help names all commands and imports none; each command has help of its own."""
    shown = pyagent("--help", env=environment).stdout
    for name in ("run", "chat", "agent", "serve", "demo", "doctor", "models", "runs", "chain", "config", "plugins"):
        assert re.search(rf"^  {name}\b", shown, re.MULTILINE), name
    assert "--port" in pyagent("serve", "--help", env=environment).stdout
    assert pyagent("version", env=environment).stdout.startswith("pyagent 0.")


def test_cli_wrong_usage_is_exit_2(environment: dict[str, str]) -> None:
    """An unknown command, flag or value is two lines on standard error and exit code 2."""
    for arguments in (
        ["frobnicate"],
        ["run"],
        ["run", "x", "--frob"],
        ["serve", "--port", "99999"],
    ):
        done = pyagent(*arguments, env=environment)
        assert done.returncode == 2, arguments
        assert done.stderr.startswith("error: ")
        assert "--help shows what there is" in done.stderr
        assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", ""], "the task is empty"),
        (["run", "x", "--file", "nowhere.txt"], "there is no file nowhere.txt"),
        (["run", "x", "--chain", "smoke:signals"], "no plugin brings the backend 'smoke'"),
        (["run", "x", "--model", "nowhere.gguf"], "nowhere.gguf does not exist"),
        (["agent", "maths", "1"], "did you mean 'math'"),
        (["agent", "math", "--precision", "3", "1+1"], "math has no option --precision"),
        (["agent", "math", "--expression"], "needs a value"),
        (["serve", "--host", "0.0.0.0"], "needs API keys"),
        (["runs", "show", "r-none"], "there is no run"),
        (["demo", "nowhere"], "there is no folder nowhere"),
        (["--debug", "version", "--config", "x"], "there is no option '--config'"),
    ],
)
def test_cli_errors_are_one_line(arguments: list[str], says: str, environment: dict[str, str]) -> None:
    """What went wrong is one line on standard error, without a traceback, and a failing exit code."""
    done = pyagent(*arguments, env=environment)
    assert done.returncode in {1, 2}
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")]


def test_cli_debug_shows_the_traceback(environment: dict[str, str]) -> None:
    """With --debug the error comes with its traceback."""
    assert "Traceback" in pyagent("--debug", "run", "x", "--chain", "smoke:signals", env=environment).stderr


def test_cli_bad_settings_are_one_line(environment: dict[str, str], tmp_path: Path) -> None:
    """A typo in the file of settings is named with the nearest key."""
    (tmp_path / "pyagent.toml").write_text("chian = ['native']\n")
    done = pyagent("run", "1+1", env=environment)
    assert done.returncode == 1
    assert "chian" in done.stderr
    assert "chain" in done.stderr


def test_cli_run_plain_and_json(chain: str, environment: dict[str, str]) -> None:
    """In a pipe a run is plain lines ending with the result and its cost; --json gives events."""
    plain = pyagent("run", "17*23 + sqrt(2)", "--chain", chain, env=environment)
    assert plain.returncode == 0, plain.stderr
    assert "391 + sqrt(2)" in plain.stdout
    assert "\x1b" not in plain.stdout
    assert re.search(r"done in .* · run r-\w+ \(pyagent runs show", plain.stdout)
    events = [
        json.loads(line)
        for line in pyagent("run", "2+2", "--json", "--chain", chain, env=environment).stdout.splitlines()
    ]
    assert (events[0]["event"], events[-1]["event"]) == ("run_started", "run_finished")
    assert events[-1]["output"]["exact"] == "4"
    listed = json.loads(pyagent("runs", "list", "--json", env=environment).stdout)
    assert [run["task"] for run in listed] == ["2+2", "17*23 + sqrt(2)"]
    assert "r-" in pyagent("runs", "list", env=environment).stdout
    assert "math" in pyagent("runs", "show", listed[0]["run"], env=environment).stdout
    assert "run_finished" in pyagent("runs", "show", "--events", env=environment).stdout
    assert json.loads(pyagent("runs", "show", listed[0]["run"], "--json", env=environment).stdout.splitlines()[-1])


def test_cli_run_is_live_on_a_terminal(chain: str, environment: dict[str, str]) -> None:
    """On a terminal the rows change in place, and the result is there at the end."""
    terminal = Terminal("run", "2+2", "--chain", chain, env=environment)
    assert terminal.finish() == 0
    assert "math" in terminal.shown
    assert "tok/s" in terminal.shown
    assert "done in " in terminal.shown


def test_cli_agent_lists_and_runs(chain: str, environment: dict[str, str], tmp_path: Path) -> None:
    """Without a name the agents are listed; code-health gives files with functions as JSON."""
    assert "math" in pyagent("agent", env=environment).stdout
    assert {"math", "code-health"} <= {
        one["name"] for one in json.loads(pyagent("agent", "--json", env=environment).stdout)
    }
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("def f(x):\n    if x:\n        return 1\n    return 2\n")
    done = pyagent("agent", "code-health", "code", "--json", "--chain", chain, env=environment)
    assert done.returncode == 0, done.stderr
    function = json.loads(done.stdout)["files"][0]["functions"][0]
    assert (function["name"], function["line"], function["complexity"]) == ("f", 1, 2)


def test_cli_chain_explain(chain: str, environment: dict[str, str]) -> None:
    """Explaining says which links would be tried and which not, with reasons."""
    away = "openai:http://127.0.0.1:9/v1"
    shown = pyagent("chain", "explain", "hi", "--chain", f"{away},{chain}", env=environment).stdout.splitlines()
    assert "likely fail" in shown[0]
    assert "would be tried" in shown[1]
    rows = json.loads(
        pyagent("chain", "explain", "hi", "--private", "--json", "--chain", chain, env=environment).stdout
    )
    assert [(row["is_eligible"], row["reason"]) for row in rows] == [
        (False, "the request is private, this link is not")
    ]


def test_cli_doctor(chain: str, environment: dict[str, str]) -> None:
    """The doctor names the machine, plugins, models and links, says what to do, and fails when no link is ready."""
    well = pyagent("doctor", "--chain", chain, env=environment)
    assert well.returncode == 0, well.stderr
    for word in ("cpu", "memory", "openai", "pyagent models pull smollm2:135m", "ready", "LM Studio"):
        assert word in well.stdout, word
    findings = json.loads(
        pyagent("doctor", "--json", "--chain", "openai:http://127.0.0.1:9/v1,smoke", env=environment).stdout
    )
    links = [finding for finding in findings if finding["area"] == "chain"]
    assert [link["is_well"] for link in links] == [False, False]
    assert pyagent("doctor", "--chain", "openai:http://127.0.0.1:9/v1", env=environment).returncode == 1


def test_cli_chat_answers_and_commands(chain: str, environment: dict[str, str], tmp_path: Path) -> None:
    """A conversation is answered, changed, saved and left by its commands."""
    lines = [
        "/help",
        "hello there",
        "/model",
        "/agent math",
        "2+2",
        "/agent",
        "/save talk.json",
        "/new",
        "/quit",
    ]
    done = pyagent("chat", "--chain", chain, "--system", "Be brief.", env=environment, text="\n".join(lines))
    assert done.returncode == 0, done.stderr
    assert "You said: hello there" in done.stdout
    assert "talking to math" in done.stdout
    saved = json.loads((tmp_path / "talk.json").read_text())
    assert [message["role"] for message in saved] == ["system", "user", "assistant", "user", "assistant"]
    assert saved[2]["content"] == "You said: hello there"
    bad = pyagent("chat", "--chain", chain, env=environment, text="/agent nobody\n")
    assert (bad.returncode, "there is no agent 'nobody'" in bad.stderr) == (1, True)


def test_cli_chat_ctrl_c_stops_the_answer_only(chain: str, environment: dict[str, str]) -> None:
    """Ctrl+C in mid-answer ends that answer at once; the next question is answered."""
    process = started("chat", "--chain", chain, env=environment)
    assert process.stdin
    assert process.stdout
    process.stdin.write("go on forever\n")
    process.stdin.flush()
    assert process.stdout.read(9) == "You said:"
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate("and you?\n", timeout=60)
    assert process.returncode == 0, errors
    assert "(stopped)" in rest
    assert "You said: and you?" in rest


def test_cli_run_ctrl_c_is_clean_and_the_journal_valid(chain: str, environment: dict[str, str], tmp_path: Path) -> None:
    """Ctrl+C in mid-answer ends the program at once with code 130, and the journal is whole."""
    story = tmp_path / "story.txt"
    story.write_text("forever and ever. " * 20)
    process = started("agent", "summarize", "forever", "--file", "story.txt", "--chain", chain, env=environment)
    assert process.stdout
    assert process.stdout.readline()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)  # a second on an idle machine; the answer has no end
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    (run,) = json.loads(pyagent("runs", "list", "--json", env=environment).stdout)
    assert run["state"] == "cancelled"
    exported = pyagent("runs", "export", run["run"], env=environment)
    _, *records = [json.loads(line) for line in exported.stdout.splitlines()]
    assert {"run_started", "run_failed"} <= {record["event"]["event"] for record in records}


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_cli_serve_answers_and_ends_cleanly(sent: signal.Signals, chain: str, environment: dict[str, str]) -> None:
    """The server answers for its chain and its agents, and a signal ends it with code 0, also in mid-answer."""
    process, url = server_started("--chain", chain, env=environment | {"PYAGENT_SERVER__DRAIN_SECONDS": "0.5"})
    with httpx.Client(verify=False, timeout=60) as http:
        models = [model["id"] for model in http.get(f"{url}/v1/models").json()["data"]]
        assert {"talker", "agent:math"} <= set(models)
        hello = {"messages": [{"role": "user", "content": "hello"}]}
        answer = http.post(f"{url}/v1/chat/completions", json={"model": "talker", **hello}).json()
        assert answer["choices"][0]["message"]["content"] == "You said: hello"
        assert answer["backend"] == chain
        sum_ = {"model": "agent:math", "messages": [{"role": "user", "content": "2+2"}]}
        assert "4" in http.post(f"{url}/v1/chat/completions", json=sum_).json()["choices"][0]["message"]["content"]
        missing = http.post(f"{url}/v1/chat/completions", json={**sum_, "model": "agent:nobody"})
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
        assert http.get(f"{url}/health").json()["status"] == "ok"
        forever = {"stream": True, "messages": [{"role": "user", "content": "forever"}]}
        with http.stream("POST", f"{url}/v1/chat/completions", json=forever) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(sent)
            assert "the server is shutting down" in list(lines)[-4]
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


def test_cli_serve_drains_on_sigterm(chain: str, environment: dict[str, str], tmp_path: Path) -> None:
    """On SIGTERM `/ready` says no at once and new requests are turned away; the running answer is whole."""
    process, url = server_started("--chain", chain, env=environment)
    slowly = {"stream": True, "messages": [{"role": "user", "content": f"until {tmp_path / 'end'}"}]}
    with (
        httpx.Client(verify=False, timeout=60) as http,
        http.stream("POST", f"{url}/v1/chat/completions", json=slowly) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        assert http.get(f"{url}/ready").status_code == 200
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: http.get(f"{url}/ready").status_code == 503)
        assert http.get(f"{url}/health").status_code == 200
        refused = http.post(f"{url}/v1/chat/completions", json=slowly)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutdown")
        assert refused.headers["retry-after"] == "5"
        (tmp_path / "end").touch()
        rest = list(lines)
        assert '"finish_reason":"stop"' in "".join(rest)
        assert "data: [DONE]" in rest
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


def test_cli_serve_port_in_use(chain: str, environment: dict[str, str]) -> None:
    """A taken port is one sentence that says what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = pyagent("serve", "--port", str(port), "--chain", chain, env=environment)
    assert done.returncode == 1
    assert (
        done.stderr.strip()
        == f"error: port {port} on 127.0.0.1 is in use; stop what listens there, or choose another with --port"
    )


def test_cli_output_cut_short_is_no_error(chain: str, environment: dict[str, str]) -> None:
    """A reader that has enough (`| head -1`) causes no traceback."""
    shell = f"{sys.executable} -c 'from pyagent.cli.main import main; main()' run 2+2 --json --chain {chain} | head -1"
    done = subprocess.run(
        ["bash", "-c", shell], check=False, env=environment, capture_output=True, text=True, timeout=60
    )
    assert json.loads(done.stdout)["event"] == "run_started"
    assert "Traceback" not in done.stderr
