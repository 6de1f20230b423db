"""Asking a running server over HTTP, for commands that look into one or steer it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyagent.cli.startup import read_settings
from pyagent.core.errors import BackendError, RequestError

if TYPE_CHECKING:
    from pyagent.core.messages import JsonObject
    from pyagent.core.settings import Server, Settings


def call_server(
    method: str,
    path: str,
    url: str | None,
    config: Path | None,
    body: JsonObject | None = None,
    *,
    is_for_node: bool = False,
) -> bytes:
    """Return what the server answers; raises `RequestError` with its own words, `BackendError` when there is none.

    What `is_for_node` goes to this user's `pyagent node`, whatever `pyagent serve` runs beside it.
    """
    import httpx
    import msgspec

    settings = read_settings(config)
    server = settings.server
    base = (url or _own_url(settings, is_for_node=is_for_node)).rstrip("/")
    headers = _authorization(server) | {"content-type": "application/json"}
    content = None if body is None else msgspec.json.encode(body)
    try:
        with httpx.Client(trust_env=False, timeout=600) as http:
            answer = http.request(method, base + path, content=content, headers=headers)
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise RequestError(f"{base!r} is no URL of a server; expected one such as http://127.0.0.1:8321") from error
    except httpx.HTTPError as error:
        start = "start one with `pyagent serve` or `pyagent node`, or name it with --url"
        what = f"no server answers at {base}: {error}; {start}"
        raise BackendError(what, backend=base) from error
    if answer.status_code == 200:
        return answer.content
    try:
        told = msgspec.json.decode(answer.content, type=dict[str, dict[str, object]])["error"]["message"]
    except (msgspec.DecodeError, KeyError):
        told = f"it answers with status {answer.status_code}; is it a PyAgent server of this version?"
    raise RequestError(f"{base}: {told}")


def _own_url(settings: Settings, *, is_for_node: bool) -> str:
    """Return where this user's server is: as the settings have it, unless the only one that runs has another port."""
    from pyagent.cli.running_servers import running_servers

    host, port = settings.server.host, settings.server.port
    running = running_servers(settings.paths.data)
    if is_for_node:
        running = [server for server in running if server.door] or running
    if len(running) == 1:
        host, port = running[0].host, running[0].port
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - all interfaces are no address to ask
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _authorization(server: Server) -> dict[str, str]:
    """Return the header with the first key of the settings' files, an administrator's if there is one."""
    import msgspec

    from pyagent.infrastructure.server.api_keys import read_keys

    files = {name: file for name in ("admin_keys_file", "api_keys_file") if (file := getattr(server, name)) is not None}
    there = {name: file if file.is_file() else None for name, file in files.items()}
    keys = read_keys(msgspec.structs.replace(server, host="127.0.0.1", **there))
    keys.sort(key=lambda key: not key.is_admin)
    return {"authorization": f"Bearer {keys[0].secret.decode()}"} if keys else {}
