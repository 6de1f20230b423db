"""The agent gui at its borders: command line, HTTP, workers that are killed, a browser with axe-core, real toolkits."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.command_line import fresh_environment, pyagent
from support.interfaces import HOSTILE, everything

from pyagent.core.errors import AgentError, PyAgentError, RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.app import create_app
from pyagent.logic.agents.gui import GuiAgent, GuiResult, make_tools
from pyagent.logic.interfaces.axe import axe_findings
from pyagent.logic.interfaces.elements import Element
from pyagent.logic.interfaces.found import ElementCache
from pyagent.logic.interfaces.frameworks import FRAMEWORKS
from pyagent.logic.sandbox.pool import Work, WorkerPool
from pyagent.testing import ScriptedBackend, serve

WORDS = (
    "a sign up form with name, email, password, country (Here, There), a radio group for size (S, M), comments, "
    "a newsletter box"
)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool[Element]]:
    work = Work("gui", "pyagent.logic.interfaces.worker", Element, "a smaller file", "PyAgent", 1.0, 2 << 30)
    made: WorkerPool[Element] = WorkerPool(work, max_workers=1)
    yield made
    asyncio.run(made.close())


def run(pool: WorkerPool[Element], task: Task, agent: GuiAgent | None = None) -> GuiResult:
    fleet = Fleet(ScriptedBackend([]), [agent or GuiAgent(pool, ElementCache())])
    output = asyncio.run(fleet.run_agent("gui", task))
    assert isinstance(output, GuiResult)
    return output


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_the_command_line_writes_reads_finds_and_audits(tmp_path: Path) -> None:
    """Each action as a process: what is written is read and found in again, and faults have their line."""
    env = fresh_environment(tmp_path)
    made = pyagent("agent", "gui", WORDS, "--framework", "svelte", "--output", "Page.svelte", env=env)
    assert made.returncode == 0, made.stderr
    read = json.loads(pyagent("agent", "gui", "--file", "Page.svelte", "--json", env=env).stdout)
    kinds = [each["kind"] for each in read["interfaces"][0]["page"]["children"]]
    assert kinds == ["heading", "input", "input", "input", "select", "radio", "area", "checkbox", "button"]
    found = pyagent("agent", "gui", "where is the email field", "--file", "Page.svelte", env=env)
    line = next(
        number
        for number, text in enumerate((tmp_path / "Page.svelte").read_text().splitlines(), 1)
        if 'type="email"' in text
    )
    assert f"Page.svelte:{line}  input 'Email' #email" in found.stdout
    written(tmp_path, "bad.html", "<html lang=en><title>T</title>\n<p style='color:#999'>x</p>")
    audit = pyagent("agent", "gui", "audit the accessibility", "--file", "bad.html", env=env)
    assert "1.4.3: text 'x' (line 2): #999999 on #ffffff has a contrast of 2.84, expected 4.5" in audit.stdout


def test_a_layout_is_written_as_it_is(pool: WorkerPool[Element], tmp_path: Path) -> None:
    """A tree from a file, from TOML and from a program are one code, and no model is asked."""
    layout = {"kind": "page", "text": "P", "children": [{"kind": "button", "text": "Go"}]}
    path = written(tmp_path, "layout.json", json.dumps(layout))
    toml = 'kind = "page"\ntext = "P"\n[[children]]\nkind = "button"\ntext = "Go"\n'
    codes = {str(run(pool, Task(arguments={"layout": each, "framework": "vue"}))) for each in (layout, path, toml)}
    assert len(codes) == 1
    assert '<button id="go"' in codes.pop()


@pytest.mark.parametrize(
    ("task", "fault"),
    [
        (Task(text="read", arguments={"action": "read"}), "there is no code of an interface"),
        (Task(text=WORDS, arguments={"output": __file__}), "is there already: name a new file"),
        (Task(text="x", arguments={"layout": "nowhere.json"}), "there is no file or folder 'nowhere.json'"),
        (Task(text="x", arguments={"layout": "/dev/zero"}), "/dev/zero is no plain file"),
        (Task(arguments={"layout": {"kind": "page"}, "by": "model"}), "by no model"),
        (Task(text="x", arguments={"browser": True, "action": "read"}), "a browser is for --action audit"),
        (Task(arguments={"code": "nothing", "action": "read"}), "the code is of no framework that is known"),
        (Task(arguments={"code": "<p>x</p>", "framework": "vue", "browser": True}), "and code is vue"),
        (Task(arguments={"code": "x" * 1_000_001}), "the most is 1,000,000"),
        (Task(text="find the button", arguments={"code": "<p>x</p>", "framework": "html"}), "no element of 1 pages"),
        (Task(arguments={"code": "def f(:", "framework": "tkinter"}), "code: line 1: this is not Python"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_clear_error(pool: WorkerPool[Element], task: Task, fault: str) -> None:
    """Missing code, files and browsers, options that do not go together, code that is too large or broken."""
    if task.arguments.get("browser") and not _has_axe():
        pytest.skip("no browser and axe-core here, which is told first")
    with pytest.raises(RequestError) as raised:
        run(pool, task)
    assert fault in str(raised.value)


@pytest.mark.parametrize("hostile", ["<!" * 400_000, "<input>" * 100_000])
def test_hostile_code_costs_a_worker_its_seconds_and_no_more(pool: WorkerPool[Element], hostile: str) -> None:
    """Code that takes long, or is too much, is given up in time, and the next one is read."""
    with pytest.raises((AgentError, RequestError)):
        run(pool, Task(arguments={"action": "read", "framework": "html", "code": hostile}))
    read = run(pool, Task(arguments={"action": "read", "framework": "html", "code": "<p>x</p>"}))
    assert read.interfaces[0].page.children[0].text == "x"


def test_elements_that_were_read_are_found_without_their_file(pool: WorkerPool[Element], tmp_path: Path) -> None:
    """A second question is answered from what was read, while the file is as it was; a changed one is read anew."""
    agent = GuiAgent(pool, ElementCache())
    path = written(tmp_path, "a.html", "<button>Save</button>")
    assert run(pool, Task(text="where is the save button", files=(path,)), agent).num_cached == 0
    Path(path).chmod(0o644)
    first = run(pool, Task(text="where is the save button", files=(path,)), agent)
    assert run(pool, Task(text="where is the save button"), agent).num_cached == 1
    written(tmp_path, "a.html", "<p>x</p>\n<button>Save</button>")
    second = run(pool, Task(text="where is the save button", files=(path,)), agent)
    assert (first.found[0].line, second.found[0].line, second.num_cached) == (1, 2, 0)
    assert first.found[0].hash == second.found[0].hash


def test_over_http_files_stand_below_the_root_and_none_is_written(pool: WorkerPool[Element], tmp_path: Path) -> None:
    """`agent:gui` writes code into the answer, reads no file outside, and finds nothing that others had read there."""
    cache = ElementCache()
    outside = written(tmp_path, "outside.html", "<button>Secret</button>")
    run(pool, Task(text="where is the secret button", files=(outside,)), GuiAgent(pool, cache))
    root = tmp_path / "root"
    root.mkdir()
    backend = AgentBackend(lambda: Fleet(ScriptedBackend([]), [GuiAgent(pool, cache)]), root)
    asked: list[Any] = [
        WORDS, {"action": "find", "code": "", "framework": "html"}, {"output": "x.html", "layout": {"kind": "page"}},
        {"action": "read", "layout": str(outside)},
    ]  # fmt: skip
    with serve(create_app(ScriptedBackend([]), agents=backend)) as url, httpx.Client(base_url=url, timeout=60) as http:
        texts = [each if isinstance(each, str) else json.dumps(each) for each in asked]
        bodies = [{"model": "agent:gui", "messages": [{"role": "user", "content": text}]} for text in texts]
        answers = [http.post("/v1/chat/completions", json=body) for body in bodies]
    assert "<!DOCTYPE html>" in answers[0].json()["choices"][0]["message"]["content"]
    assert all(answer.status_code >= 400 for answer in answers[1:])
    assert "files are written by a run on this machine only" in answers[2].text
    assert "Secret" not in "".join(answer.text for answer in answers)


def test_tools_write_and_audit(pool: WorkerPool[Element]) -> None:
    """What a model calls gives code, and the faults of code."""
    write, look = make_tools(pool)
    code = asyncio.run(_called(write, {"description": WORDS, "framework": "react"}))
    assert "export default function SignUpPage" in str(code)
    audited = asyncio.run(_called(look, {"code": "<html lang=en><title>T</title><input>", "framework": "html"}))
    assert [each.criterion for each in audited.findings] == ["1.3.1, 3.3.2, 4.1.2"]


async def _called(tool: Any, arguments: dict[str, object]) -> Any:
    return await tool.function(tool.arguments(**arguments))


def _has_axe() -> bool:
    try:
        from pyagent.logic.interfaces.axe import check_installed

        check_installed()
    except PyAgentError:
        return False
    return True


@pytest.mark.skipif(not _has_axe(), reason="needs Chromium, and the packages playwright and axe-playwright-python")
def test_axe_has_no_fault_of_what_we_write_and_finds_those_of_others() -> None:
    """Our HTML has no violation for axe-core in a browser; a page of faults has them, and its script does not run."""
    assert asyncio.run(axe_findings(FRAMEWORKS["html"].write(everything()))) == []
    faulty = "<html><p style='color:#999'>dim words</p><img src=http://example.com/x.png><input><script>document.title='x'</script>"
    rules = {finding.rule: finding for finding in asyncio.run(axe_findings(faulty))}
    assert set(rules) == {"axe:color-contrast", "axe:image-alt", "axe:label", "axe:html-has-lang", "axe:document-title"}
    assert "2.84" in rules["axe:color-contrast"].mend
    assert rules["axe:label"].criterion == "4.1.2"


def test_textual_runs_what_we_write(tmp_path: Path) -> None:
    """The app starts, shows hostile texts as texts, and ends with its values when its button is pressed."""
    pytest.importorskip("textual", reason="needs the package textual")
    made = runpy.run_path(written(tmp_path, "page.py", FRAMEWORKS["textual"].write(everything())))
    app = next(each for name, each in made.items() if name.endswith("Page"))()

    async def press() -> None:
        async with app.run_test(size=(100, 200)) as pilot:
            assert str(app.query_one("#go").label) == HOSTILE
            await pilot.click("#go")

    asyncio.run(press())
    pressed, values = app.return_value
    assert (pressed, values["email"], values["box"], values["land"]) == ("go", HOSTILE, True, HOSTILE)
    assert set(values) >= {"size"}


@pytest.mark.skipif(
    shutil.which("xvfb-run") is None and not os.environ.get("DISPLAY"), reason="needs a display, or xvfb"
)
def test_tkinter_runs_what_we_write(tmp_path: Path) -> None:
    """The window is made, and its button tells its values."""
    pytest.importorskip("tkinter", reason="this Python has no tkinter")
    path = written(tmp_path, "page.py", FRAMEWORKS["tkinter"].write(everything()))
    script = (
        "import json, runpy, sys, tkinter\nroot = tkinter.Tk()\n"
        "build = runpy.run_path(sys.argv[1])['build']\n"
        "build(root, lambda name, values: print(json.dumps([name, values])))\nroot.update()\n"
        "root.nametowidget('.!frame.go').invoke()\n"
    )
    prefix = [] if os.environ.get("DISPLAY") else ["xvfb-run", "-a"]
    ran = subprocess.run(
        [*prefix, sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    name, values = json.loads(ran.stdout)
    assert (name, values["email"], values["box"]) == ("go", HOSTILE, True)
