"""`pyagent chat` as people use it: pastes, several lines, files, agents that remember, and going on the next day."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from support.command_line import Terminal, plain, pyagent


def _chat(env: dict[str, str], chain: str, *lines: str, more: tuple[str, ...] = ()) -> str:
    done = pyagent("chat", "--chain", chain, *more, env=env, text="\n".join(lines))
    assert done.returncode == 0, done.stderr
    return done.stdout


def _saved(folder: Path) -> list[dict[str, str]]:
    return json.loads((folder / "talk.json").read_text())


def test_a_paste_is_one_question(chain: str, environment: dict[str, str]) -> None:
    """Text pasted into a terminal, lines and all, is one question, and the answer is followed by its tokens."""
    terminal = Terminal("chat", "--chain", chain, env=environment)
    terminal.read_until("> ")
    terminal.type("\x1b[200~first line\nsecond line\x1b[201~\r")
    terminal.read_until(lambda shown: "You said: first line\r\nsecond line" in plain(shown))
    terminal.read_until("(5 tokens in, 3 out")
    terminal.type("/quit\r")
    assert terminal.finish() == 0


def test_a_paste_needs_no_readline(chain: str, environment: dict[str, str], tmp_path: Path) -> None:
    """Where the line editor knows nothing of pastes, lines that come at once are one question all the same."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "readline.py").write_text("raise ImportError\n")
    path = os.pathsep.join([str(tmp_path / "site"), environment.get("PYTHONPATH", "")])
    terminal = Terminal("chat", "--chain", chain, env=environment | {"PYTHONPATH": path})
    terminal.read_until("> ")
    terminal.type("first line\nsecond line\n")
    terminal.read_until(lambda shown: "You said: first line\r\nsecond line" in plain(shown))
    terminal.type("/quit\n")
    assert terminal.finish() == 0


def test_quotes_hold_several_lines(chain: str, environment: dict[str, str], tmp_path: Path) -> None:
    """Three quotes begin and end a question of several lines, in a pipe too."""
    _chat(environment, chain, '"""first', "second", 'third"""', "and on", "/save talk.json")
    asked = [message["content"] for message in _saved(tmp_path) if message["role"] == "user"]
    assert asked == ["first\nsecond\nthird", "and on"]


def test_agents_go_on_from_what_was_said(environment: dict[str, str], chain: str) -> None:
    """A question to an agent that goes on from its last answer is understood."""
    shown = _chat(environment, chain, "/agent math", "3*4", "and times 2?", "minus 4")
    assert [line for line in shown.splitlines() if re.search(r"= (12|24|20)$", line)] != []
    assert shown.strip().endswith("= 20")


def test_errors_are_told_once(chain: str, environment: dict[str, str]) -> None:
    """In a pipe the first error ends the chat with exit code 1, told once; a mistyped command is told the nearest."""
    for line, says in (("/model nosuch", "nosuch"), ("/fiel x", "did you mean '/file'?"), ("/file nowhere", "no file")):
        done = pyagent("chat", "--chain", chain, env=environment, text=f"{line}\nhello\n")
        assert done.returncode == 1
        assert says in done.stderr
        assert done.stderr.count("error: ") == 1
        assert "You said" not in done.stdout


def test_a_wrong_model_is_refused_at_once(chain: str, environment: dict[str, str]) -> None:
    """On a terminal `/model nosuch` is refused, and who answered before goes on to."""
    terminal = Terminal("chat", "--chain", chain, env=environment)
    terminal.read_until("> ")
    terminal.type("/model nosuch\r")
    terminal.read_until("error: ")
    terminal.type("hello\r")
    assert "'nosuch' is not known" in terminal.read_until("You said: hello")
    terminal.type("/bye\r")
    assert terminal.finish() == 0


def test_files_and_the_system_prompt(chain: str, environment: dict[str, str], tmp_path: Path) -> None:
    """`/file` gives a file with the next question only; `/system` says what the model is told first."""
    (tmp_path / "lease.txt").write_text("One cat, no dogs.")
    shown = _chat(
        environment, chain, "/system Be brief.", "/file lease.txt", "Pets?", "Again?", "/system", "/save talk.json"
    )
    assert "the model is told first: Be brief." in shown
    texts = [(message["role"], message["content"]) for message in _saved(tmp_path)]
    assert texts[:2] == [("system", "Be brief."), ("user", "lease.txt:\nOne cat, no dogs.\n\nPets?")]
    assert texts[3] == ("user", "Again?")


def test_a_conversation_is_continued(chain: str, environment: dict[str, str], tmp_path: Path) -> None:
    """`--continue` goes on with the last conversation; a private one is not kept."""
    nothing = pyagent("chat", "--chain", chain, "--continue", env=environment)
    assert (nothing.returncode, "no conversation to continue" in nothing.stderr) == (1, True)
    _chat(environment, chain, "one", "two")
    _chat(environment, chain, "three", "/save talk.json", more=("--continue",))
    asked = [message["content"] for message in _saved(tmp_path) if message["role"] == "user"]
    assert asked == ["one", "two", "three"]
    kept = next((tmp_path / "data" / "chat").iterdir())
    assert kept.stat().st_mode & 0o077 == 0
    before = kept.read_bytes()
    _chat(environment | {"PYAGENT_RULES__PRIVATE": "openai"}, chain, "a secret", more=("--private",))
    assert kept.read_bytes() == before


CITY = '{"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": false}'


def test_answers_follow_the_form_of_the_flags(
    environment: dict[str, str], tmp_path: Path, tiny_model_path: Path
) -> None:
    """Each question of a pipe to a model that talks nonsense is answered in the form asked for, and by nothing else."""
    (tmp_path / "city.json").write_text(CITY)
    answered = _chat(environment, f"native:{tiny_model_path}", "go", "go on", more=("--schema", "city.json"))
    assert all(json.loads(line)["n"] in {1, 2} for line in answered.split("\n") if line)
    assert len(answered.split()) == 4


def test_form_that_cannot_be_is_wrong_usage(environment: dict[str, str]) -> None:
    """What cannot be enforced ends with exit code 2, before a model is looked for."""
    done = pyagent("chat", "--model", "none-such", "--regex", "(?=a)b", env=environment, text="go")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--regex cannot be enforced: " in " ".join(done.stderr.split())


def test_agents_take_no_form(chain: str, environment: dict[str, str]) -> None:
    """An agent answers as it does; choosing one while a form is asked for is refused."""
    done = pyagent("chat", "--chain", chain, "--choice", "a", env=environment, text="/agent math")
    assert done.returncode == 1
    assert "agents answer in forms of their own" in done.stderr
