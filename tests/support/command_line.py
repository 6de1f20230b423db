"""The `pyagent` command as a process, and a chain entry that answers it: shared by the end-to-end tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from support import warm_start

from pyagent.core.messages import ChatDelta, ChatRequest, EmbedRequest, EmbedResult, Health, ModelInfo, Usage

_MOST_SECONDS = 60.0
COMMAND = [sys.executable, "-c", "from pyagent.cli.main import main; main()"]


class Talker:
    """Says what it was asked; `until PATH` goes on until there is that file, `forever` for ever."""

    name = "talker"

    async def models(self) -> list[ModelInfo]:
        return [ModelInfo(id="talker")]

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        text = request.messages[-1].text
        for word in ("You", " said: ", text):
            yield ChatDelta(content=word)
        told = re.search(r"until (\S+)", text)
        while told and not Path(told[1]).exists():  # noqa: ASYNC240 - a look at a local file
            yield ChatDelta(content=" more")
            await asyncio.sleep(0.01)
        while "forever" in text:
            yield ChatDelta(content=" and")
            await asyncio.sleep(0.01)
        yield ChatDelta(finish_reason="stop", usage=Usage(5, 3, 8))

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        raise NotImplementedError

    async def health(self) -> Health:
        return Health(is_ready=True, models=["talker"])

    async def close(self) -> None:
        return None


def fresh_environment(home: Path) -> dict[str, str]:
    """A user without settings, models or past runs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYAGENT_", "XDG_"))}
    return kept | {"HOME": str(home), "PYAGENT_PATHS__DATA": str(home / "data"), "NO_COLOR": "1", "TERM": "xterm"}


def pyagent(
    *arguments: str, env: dict[str, str], text: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    folder, command = str(cwd or env["HOME"]), [*COMMAND, *arguments]
    if warm_start.fits(env, text):
        code, out, errors = warm_start.run(arguments, env, text, folder, _MOST_SECONDS)
        return subprocess.CompletedProcess(command, code, out, errors)
    return subprocess.run(
        command,
        check=False,
        env=env,
        input=text,
        capture_output=True,
        text=True,
        timeout=_MOST_SECONDS,
        cwd=folder,
    )


def started(*arguments: str, env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=env["HOME"],
    )


def listening_ports(pid: int) -> list[str]:
    """The ports on which a process listens at addresses of IPv4."""
    opened: list[str] = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            opened.append(str(link.readlink()))
    inodes = {one.removeprefix("socket:") for one in opened if one.startswith("socket:")}
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [str(int(row[1].split(":")[1], 16)) for row in rows if row[3] == "0A" and f"[{row[9]}]" in inodes]


def server_started(*arguments: str, env: dict[str, str]) -> tuple[subprocess.Popen[str], str]:
    """`pyagent serve` on a free port, and its address, once it has told it."""
    process = started("serve", "--port", "0", *arguments, env=env)
    assert process.stdout
    line = process.stdout.readline()
    found = re.search(r"http://\S+?:\d+", line)
    assert found, (line, process.stderr and process.stderr.read())
    return process, found[0]


class Terminal:
    """A command on a terminal of its own: what it shows, and keys for it."""

    def __init__(self, *arguments: str, env: dict[str, str]) -> None:
        primary, secondary = pty.openpty()
        self.shown = ""
        self._primary = primary
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=env,
            stdin=secondary,
            stdout=secondary,
            stderr=secondary,
            cwd=env["HOME"],
            start_new_session=True,
        )
        os.close(secondary)

    def type(self, text: str) -> None:
        """Type some keys."""
        os.write(self._primary, text.encode())

    def read_until(self, is_there: str | Callable[[str], bool], seconds: float = 60) -> str:
        """Read until a text, or what a test of all that was shown wants, is there; fails at the end of the output."""
        end = time.monotonic() + seconds
        test = is_there if callable(is_there) else lambda shown: is_there in shown
        while not test(self.shown):
            assert time.monotonic() < end, self.shown
            assert self._read(), self.shown
        return self.shown

    def finish(self, seconds: float = 60) -> int:
        """Read to the end; the exit code."""
        while self._read():
            pass
        return self.process.wait(seconds)

    def _read(self) -> bool:
        if not select.select([self._primary], [], [], 60)[0]:
            return False
        try:
            data = os.read(self._primary, 65536)
        except OSError:  # Linux's way to say that the other side is closed
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)


def plain(shown: str) -> str:
    """What a terminal was sent, without its escape sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
