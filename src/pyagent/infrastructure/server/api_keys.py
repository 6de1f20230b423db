"""API keys: who calls, whose text it is, and who may run the server.

Two kinds. A client's key asks for answers; an administrator's may drain, sleep and wake the engines, fetch models,
share prompts between all keys and forget all kept answers. A key's name is its tenant, and one without gets a name made
from the key, which is the same wherever it stands in its file: nothing that is computed, kept
or remembered for one is used for or shown to another, administrators included. Where no keys are configured, any
client that reaches the server is an administrator, and there is one tenant.

Keys are compared in constant time and never logged; what the log and the metrics have is their names.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

import msgspec
from starlette.requests import Request

from pyagent.core.errors import ConfigError, RequestError
from pyagent.core.messages import ChatRequest
from pyagent.core.settings import Server

ADMIN_KEY_NEEDED = "admin_key_needed"
"""The code of the error that a client's key gets where an administrator's is needed."""
_NAME = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LEAST_CHARS = 16
_MARK_BYTES = 4
"""Of the digest that names a key without a name: enough to tell keys apart, too little to tell a key."""

logger = logging.getLogger("pyagent.server")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key: its name is shown in logs and metrics, its secret never."""

    name: str
    secret: bytes = field(repr=False)
    is_admin: bool = False


def read_keys(settings: Server) -> list[ApiKey]:
    """Return the accepted keys. Raises `ConfigError` for a file that will not do, and when any machine could call."""
    keys: list[ApiKey] = []
    for setting, file in (("api_keys_file", settings.api_keys_file), ("admin_keys_file", settings.admin_keys_file)):
        if file is not None:
            keys += _keys_in(file, f"server.{setting}", is_admin=setting == "admin_keys_file")
    for number, key in enumerate(keys):
        if any(key.name == other.name or key.secret == other.secret for other in keys[:number]):
            text = f"the API key {key.name!r} stands twice, by its name or by itself; each needs a name of its own"
            raise ConfigError(text, key="server.api_keys_file")
    if not keys and not is_loopback(settings.host):
        raise ConfigError(
            f"listening on {settings.host} lets other machines in, which needs API keys; set server.api_keys_file to a "
            "file with one key a line, or listen on 127.0.0.1",
            key="server.api_keys_file",
        )
    return keys


def check_origins(origins: Sequence[str], *, has_keys: bool) -> None:
    """Raise `ConfigError` where every page of the web could use a server that asks for no key."""
    if "*" in origins and not has_keys:
        text = "every page of the web may use this server; name origins, or set server.api_keys_file"
        raise ConfigError(text, key="server.allowed_origins")


def _keys_in(file: Path, setting: str, *, is_admin: bool) -> Iterator[ApiKey]:
    try:
        if file.stat().st_mode & stat.S_IROTH:
            logger.warning("every user of this machine can read the API keys in %s: chmod o= %s", file, file)
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"the API keys in {file} cannot be read: {error.strerror or error}", key=setting) from error
    numbered = [(number, line.split()) for number, line in enumerate(lines, 1)]
    keys = [(number, words) for number, words in numbered if words and not words[0].startswith(b"#")]
    if not keys:
        raise ConfigError(f"{file} holds no API key; write one a line", key=setting)
    for number, (*name, secret) in keys:
        if len(name) > 1 or (name and not _NAME.fullmatch(name[0])):
            text = f"line {number} of {file} is not `KEY` or `NAME KEY`; a name has letters, digits, . _ and -"
            raise ConfigError(text, key=setting)
        if len(secret) < _LEAST_CHARS:
            text = f"the API key in line {number} of {file} is shorter than {_LEAST_CHARS} characters"
            raise ConfigError(text, key=setting)
        yield ApiKey(name[0].decode() if name else _name_of(secret, is_admin=is_admin), secret, is_admin)


def _name_of(secret: bytes, *, is_admin: bool) -> str:
    """Return the name of a key without one. It has a space, as no given name does."""
    mark = blake2b(secret, digest_size=_MARK_BYTES, person=b"pyagent tenant").hexdigest()
    return f"{'admin' if is_admin else 'key'} {mark}"


def key_of(headers: dict[bytes, bytes], keys: Sequence[ApiKey]) -> ApiKey | None:
    """Return the key that a request's headers hold, if it is one of these."""
    scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"bearer":
        given = headers.get(b"x-api-key", b"")  # where Anthropic's clients have it
    given = given.strip()
    matches = [hmac.compare_digest(given, key.secret) for key in keys]  # all of them, always
    return keys[matches.index(True)] if any(matches) else None


@lru_cache(64)
def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost" or host.lower().endswith(".localhost")


# -- what a route asks of its caller, as the guard noted it ------------------------------------------------------------


def tenant_of(request: Request) -> str:
    """Return the caller's tenant: its key's name, or nothing where no keys are configured."""
    return str(request.state.client)


def is_admin(request: Request) -> bool:
    """Whether the caller may do what concerns all."""
    return bool(request.state.is_admin)


def check_admin(request: Request) -> None:
    """Raise `RequestError` unless the caller is an administrator."""
    if not is_admin(request):
        text = "this concerns all clients and needs an administrator's key (server.admin_keys_file)"
        raise RequestError(text, code=ADMIN_KEY_NEEDED)


def owned(asked: ChatRequest, request: Request) -> ChatRequest:
    """Return a request as its caller's: with the tenant, and a client's name that begins with it."""
    tenant, origin = tenant_of(request), asked.origin
    client = f"{tenant}/{origin.client}".removesuffix("/") if tenant else origin.client
    return msgspec.structs.replace(asked, origin=msgspec.structs.replace(origin, tenant=tenant, client=client))
