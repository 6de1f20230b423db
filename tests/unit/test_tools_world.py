"""The tools for programs and pages: bounded, apart from the network, and never at a private address."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from pyagent.core.errors import BackendError, RequestError
from pyagent.core.fleet.file_access import FileAccess, grant
from pyagent.core.settings.tools import Tools
from pyagent.infrastructure.tools import limited
from pyagent.infrastructure.tools.built_in import built_in_tools
from pyagent.infrastructure.tools.http import http_tool
from pyagent.infrastructure.tools.programs import ProgramLimits, python_tool, run_program, shell_tool
from pyagent.infrastructure.web.fetching import Fetcher, in_ascii, is_public
from pyagent.testing import serve

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces and limits are those of Linux")


def python(code: str, **limits: Any) -> str:
    return str(asyncio.run(python_tool(ProgramLimits(**limits)).call({"code": code})))


def test_python_runs_and_tells_how_it_ended() -> None:
    """What it prints is the result; an error ends with its code and trace."""
    assert python("print(6 * 7)") == "42"
    failed = python("1 / 0")
    assert "ZeroDivisionError" in failed
    assert "[exit code 1]" in failed


def test_program_is_bounded(tmp_path: Path) -> None:
    """Time, memory, files and output have bounds, and what it left running ends with it."""
    begun = time.monotonic()
    assert "its time was up" in python("while True: pass", seconds=1)
    assert time.monotonic() - begun < 30
    assert "MemoryError" in python("x = bytearray(10**9)", memory_bytes=300_000_000)
    assert "File too large" in python("f = open('f', 'w'); f.write('x'); f.close()")
    assert "more output is not shown" in python("print('x' * 1_000_000)")
    mark = tmp_path / "alive"
    command = f"(setsid sh -c 'sleep 0.6; touch {mark}' &) ; echo begun"
    ended = asyncio.run(run_program(["/bin/sh", "-c", command], tmp_path, ProgramLimits(seconds=20)))
    assert ended.output == "begun\n"
    if ended.is_apart:
        time.sleep(1.0)
        assert not mark.exists()


_FORKS = """
import ctypes, os, resource, sys, time
sys.path.insert(0, sys.argv[1])
import limited
if os.getuid() == 0:  # whose processes no system bounds
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
if not limited.separate(ctypes.CDLL(None, use_errno=True), uses_network=False):
    sys.exit("no namespaces")
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
number = 0
try:
    while number < 2 * limited.MAX_PROCESSES:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        number += 1
except OSError:
    os.write(1, str(number).encode())
os._exit(0)
"""


def test_program_has_a_bounded_number_of_processes() -> None:
    """One that forks without end is refused more, and all of them end with the first."""
    command = [sys.executable, "-I", "-c", _FORKS, str(Path(limited.__file__).parent)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    if "no namespaces" in ended.stderr:
        pytest.skip("this system lets nobody make namespaces")
    assert 0 < int(ended.stdout) < limited.MAX_PROCESSES, ended.stderr


def test_program_has_no_network_and_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reaches no port of this machine, or the result says that it could; keys in the environment stay here."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    app = Starlette(routes=[Route("/", lambda _: PlainTextResponse("reached"))])
    with serve(app) as url:
        code = f"import urllib.request as r, os; print(os.environ); print(r.urlopen({url!r}, timeout=5).read())"
        told = python(code)
        reached = asyncio.run(run_program([sys.executable, "-c", code], tmp_path, ProgramLimits(uses_network=True)))
    assert "reached" not in told or "could not separate" in told
    assert "sk-very-secret" not in told
    assert "reached" in reached.output


def test_cancelled_program_is_ended(tmp_path: Path) -> None:
    """Cancelling the call kills the program."""
    mark = tmp_path / "alive"

    async def main() -> None:
        work = asyncio.create_task(
            run_program(["/bin/sh", "-c", f"sleep 0.6; touch {mark}"], tmp_path, ProgramLimits())
        )
        await asyncio.sleep(0.2)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await asyncio.sleep(0.8)

    asyncio.run(main())
    assert not mark.exists()


def test_programs_are_for_people_at_this_machine(tmp_path: Path) -> None:
    """A client of a server runs no shell and no Python; each call of others needs approval."""

    async def limited(tool: Any, **arguments: object) -> object:
        grant(FileAccess.below(None))
        return await tool.call(arguments)

    shell, code = shell_tool(tmp_path, ProgramLimits()), python_tool(ProgramLimits())
    assert shell.needs_approval
    assert code.needs_approval
    for tool, arguments in ((shell, {"command": "id"}), (code, {"code": "1"})):
        with pytest.raises(RequestError, match="a client of a server may not use"):
            asyncio.run(limited(tool, **arguments))
    assert str(asyncio.run(shell.call({"command": "pwd; exit 3"}))) == f"{tmp_path}\n[exit code 3]"


def test_settings_say_which_tools_there_are(tmp_path: Path) -> None:
    """By default files and notes; tools that change files ask. None runs programs or reaches the network."""

    def names(**settings: Any) -> list[str]:
        return [tool.name for tool in built_in_tools(Tools(root=tmp_path, **settings), tmp_path)]

    reading, writing = ["read_file", "list_files", "search_files"], ["write_file", "edit_file", "replace_in_files"]
    notes = ["remember", "recall"]
    assert names() == [*reading, *writing, "undo_change", *notes]
    assert names(files="read") == [*reading, *notes]
    assert names(files="off") == notes
    assert names(files="off", shell=True, python=True, http_hosts=["*"]) == ["shell", "python", "http_get", *notes]
    unsafe = {tool.name for tool in built_in_tools(Tools(root=tmp_path), tmp_path) if tool.needs_approval}
    assert unsafe == {*writing, "undo_change"}


def _site() -> Starlette:
    async def endless(_: Request) -> Response:
        async def pieces() -> Any:
            for _ in range(100):
                yield b"x" * 65536
                await asyncio.sleep(0.001)

        return StreamingResponse(pieces(), media_type="text/plain")

    page = "<title>T</title><script>bad()</script><p>Hello <b>you</b></p>"
    return Starlette(
        routes=[
            Route("/page", lambda _: HTMLResponse(page)),
            Route("/missing", lambda _: PlainTextResponse("no", 404)),
            Route("/image", lambda _: Response(b"\x89PNG", media_type="image/png")),
            Route("/to", lambda request: RedirectResponse(request.query_params["url"])),
            Route("/loop", lambda _: RedirectResponse("/loop")),
            Route("/endless", endless),
        ]
    )


def test_pages_are_read_as_text() -> None:
    """HTML becomes words, other statuses are told, what is no text and what never ends are bounded."""
    get = http_tool(["127.0.0.1"], allows_private=True)
    with serve(_site()) as url:

        def read(path: str) -> str:
            return str(asyncio.run(get.call({"url": url + path})))

        assert read("/page") == "T\nHello you"
        assert read("/missing") == "[status 404]\nno"
        assert read(f"/to?url={url}/page") == "T\nHello you"
        assert "over 1,000,000 bytes" in read("/endless")
        for path, told in (("/image", "image/png, and not text"), ("/loop", "redirects more than 5 times")):
            with pytest.raises(RequestError, match=told):
                read(path)


def test_private_addresses_and_other_hosts_are_not_reached() -> None:
    """Neither by address, nor by name, nor after a redirect; nothing is asked before that is known."""
    public = http_tool(["*"], allows_private=False)
    with serve(_site()) as url:
        port = url.rpartition(":")[2]
        for target in (
            url,
            f"http://localhost:{port}/page",
            f"http://[::ffff:127.0.0.1]:{port}/",
            f"http://2130706433:{port}/",
        ):
            with pytest.raises((RequestError, BackendError), match=r"not public|cannot be read"):
                asyncio.run(public.call({"url": target}))
        one = http_tool(["127.0.0.1"], allows_private=True)
        for target in (
            "http://localhost/",
            f"{url}/to?url=http://localhost:{port}/page",
            "file:///etc/passwd",
            "http://u:p@127.0.0.1/",
            "http://",
        ):
            with pytest.raises(RequestError):
                asyncio.run(one.call({"url": target}))


def test_name_with_one_private_address_is_refused() -> None:
    """A name that has a public address beside a private one is refused, whichever comes first."""
    get = http_tool(["both.test"], allows_private=False)

    async def main(*addresses: str) -> object:
        async def both(*_: Any, **__: Any) -> Any:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80)) for address in addresses]

        asyncio.get_running_loop().getaddrinfo = both  # type: ignore[method-assign]
        return await get.call({"url": "http://both.test/"})

    for addresses in (("8.8.8.8", "10.0.0.1"), ("10.0.0.1", "8.8.8.8")):
        with pytest.raises(RequestError, match=r"10\.0\.0\.1, which is not public"):
            asyncio.run(main(*addresses))


def test_name_is_looked_up_once() -> None:
    """The connection goes to the address that was looked at: a name that answers otherwise later gains nothing."""
    get = http_tool(["rebind.test"], allows_private=True)
    asked: list[str] = []

    async def main(port: str) -> object:
        loop = asyncio.get_running_loop()
        look_up = loop.getaddrinfo

        async def rebinding(host: str, *args: Any, **more: Any) -> Any:
            name = host.decode() if isinstance(host, bytes) else host
            asked.append(name)
            elsewhere = "127.0.0.1" if asked.count("rebind.test") == 1 else "127.0.0.99"
            return await look_up(elsewhere if name == "rebind.test" else host, *args, **more)

        loop.getaddrinfo = rebinding  # type: ignore[method-assign]
        return await get.call({"url": f"http://rebind.test:{port}/page"})

    with serve(_site()) as url:
        assert asyncio.run(main(url.rpartition(":")[2])) == "T\nHello you"
    assert asked.count("rebind.test") == 1


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("fec0::1", False),
        ("::ffff:10.0.0.1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::7f00:1", False),
    ],
)
def test_public_addresses_are_told_from_others(address: str, public: bool) -> None:
    """An address that stands for a private one is private too."""
    assert is_public(address) == public


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("https://de.x.test/wiki/Käse?q=é%20&a=[1]#ü", "https://de.x.test/wiki/K%C3%A4se?q=%C3%A9%20&a=[1]#%C3%BC"),
        ("http://käse.test:81/", "http://xn--kse-qla.test:81/"),
        ("http://x.test/%7E a", "http://x.test/%7E a"),
    ],
)
def test_urls_are_sent_in_ascii(url: str, sent: str) -> None:
    """As wikis' addresses and redirects have them; what is ASCII already stays as it is."""
    assert in_ascii(url) == sent


@pytest.mark.parametrize(
    "url", ["http://①②⑦.0.0.1/", "http://\ud800/", "http://x.test/\ud800", "http://é..é/", "http://[é]/"]
)
def test_odd_letters_in_urls_are_refused(url: str) -> None:
    """What stands for a private address, or for no letters at all, is an error of PyAgent's."""
    with pytest.raises((RequestError, BackendError)):
        asyncio.run(Fetcher("a test").fetch(url))
