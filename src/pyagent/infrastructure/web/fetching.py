"""Gets what a URL has, from addresses that were looked at, within bounds of time and bytes.

Each connection looks its host up itself, refuses an answer that has any address which is not public, and connects to
the address that it looked at: a name that answers differently the next time gains nothing. Redirects are followed by
hand, each checked as a request of its own. No proxy, no cookie.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import string
import zlib
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, cast
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from pyagent.core.errors import BackendError, RequestError

if TYPE_CHECKING:
    import httpcore

USER_AGENT = "pyagent"
MAX_REDIRECTS = 5
_REDIRECTS = {301, 302, 303, 307, 308}
_PRINTABLE = string.digits + string.ascii_letters + string.punctuation
_ZLIB_OR_GZIP = 32 + zlib.MAX_WBITS


class FetchLimits(msgspec.Struct, frozen=True):
    """How much is read of one answer, unpacked, and how long it may take in all."""

    max_bytes: int = 1_000_000
    seconds: float = 20.0


class Page(msgspec.Struct, frozen=True):
    """An answer: its status, type and body, which `is_cut` says goes on."""

    status: int
    content_type: str
    body: bytes
    location: str = ""
    is_cut: bool = False


class Fetcher(msgspec.Struct, frozen=True):
    """How pages are got: `what` is asking, which errors name."""

    what: str
    limits: FetchLimits = FetchLimits()
    allows_private: bool = False
    accept: str = "text/*"

    async def follow(self, url: str, check: Callable[[str], Awaitable[object]]) -> tuple[str, Page]:
        """Return a page and where it was found in the end; `check` raises for a URL that may not be read.

        The bound of time is that of all redirects together.
        """
        try:
            async with asyncio.timeout(self.limits.seconds):
                for _ in range(MAX_REDIRECTS + 1):
                    await check(url)
                    page = await self.fetch(url)
                    if page.status not in _REDIRECTS or not page.location:
                        return url, page
                    url = _joined(url, page.location)
        except TimeoutError as error:
            raise self._too_slow(url) from error
        raise RequestError(f"{url:.200} redirects more than {MAX_REDIRECTS} times", param="url")

    async def fetch(self, url: str, headers: Iterable[tuple[str, str]] = ()) -> Page:
        """Return what one URL has. Raises `BackendError` where nothing comes, `RequestError` for a private address."""
        import httpcore

        url = in_ascii(url)
        host = urlsplit(url).netloc
        sent = [("Host", host), ("User-Agent", USER_AGENT), ("Accept", self.accept), ("Accept-Encoding", "identity")]
        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), self.limits.seconds)
        backend = checked_backend(allows_private=self.allows_private)
        try:
            async with (
                asyncio.timeout(self.limits.seconds),
                httpcore.AsyncConnectionPool(network_backend=backend) as pool,
                pool.stream("GET", url, headers=[*sent, *headers], extensions={"timeout": timeouts}) as answer,
            ):
                return await _read(answer, self.limits.max_bytes)
        except (TimeoutError, httpcore.TimeoutException) as error:
            raise self._too_slow(url) from error
        except (
            httpcore.NetworkError,
            httpcore.ProtocolError,
            httpcore.UnsupportedProtocol,
            OSError,
            UnicodeError,
            zlib.error,
        ) as error:
            text = f"{host:.200} cannot be read: {error or type(error).__name__}"
            raise BackendError(text, backend=self.what) from error

    def _too_slow(self, url: str) -> BackendError:
        text = f"{urlsplit(url).netloc:.200} did not answer within {self.limits.seconds:g} s"
        return BackendError(text, backend=self.what)


def _joined(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise RequestError(f"{url:.200} redirects to what is no URL", param="url") from error


def checked_parts(url: str) -> tuple[str, int | None]:
    """Return a URL's host and port; raises `RequestError` for what is no http(s) URL, or holds a password."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise RequestError(f"{url!r:.200} is no URL: {error}", param="url") from error
    if parts.scheme not in {"http", "https"} or not host or "@" in parts.netloc:
        raise RequestError(f"{url!r:.200} is no http:// or https:// URL without a password", param="url")
    return host, port


def in_ascii(url: str) -> str:
    """Return a URL as it is sent: a name's letters by IDNA, those of the rest percent-encoded as UTF-8 (RFC 3987)."""
    if url.isascii():
        return url
    try:
        parts = urlsplit(url)
        name, colon, port = parts.netloc.partition(":")
        host = name if name.isascii() else name.encode("idna").decode("ascii")
        return quote(parts._replace(netloc=f"{host}{colon}{port}").geturl(), safe=_PRINTABLE)
    except (UnicodeError, ValueError) as error:
        raise RequestError(f"{url!a:.200} is no URL: {error}", param="url") from error


async def _read(answer: httpcore.Response, max_bytes: int) -> Page:
    """Return an answer's first bytes, unpacked: what a few bytes unpack to is bounded as well."""
    headers = {name.lower(): value.decode("latin-1") for name, value in answer.headers}
    encoding = headers.get(b"content-encoding", "identity").strip().lower()
    unpack = _unpacker(encoding, max_bytes)
    body = bytearray()
    async for piece in answer.aiter_stream():
        body += unpack(piece)
        if len(body) > max_bytes:
            break
    content_type, location = headers.get(b"content-type", ""), headers.get(b"location", "")
    return Page(answer.status, content_type, bytes(body[:max_bytes]), location, is_cut=len(body) > max_bytes)


def _unpacker(encoding: str, max_bytes: int) -> Callable[[bytes], bytes]:
    if encoding in {"", "identity"}:
        return lambda piece: piece
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise BackendError(f"it is packed by {encoding:.40}, which was not asked for", backend="http")
    inflater = zlib.decompressobj(_ZLIB_OR_GZIP)
    return lambda piece: inflater.decompress(piece, max_bytes + 1)


def checked_backend(*, allows_private: bool) -> httpcore.AsyncNetworkBackend:
    """Return what connects: to the address that was looked at, and to none that is not public."""
    import httpcore

    class Checked(httpcore.AsyncNetworkBackend):
        def __init__(self) -> None:
            self._inner = cast("httpcore.AsyncNetworkBackend", getattr(httpcore, "AnyIOBackend")())  # noqa: B009

        async def connect_tcp(
            self,
            host: str,
            port: int,
            timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
            local_address: str | None = None,
            socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
        ) -> httpcore.AsyncNetworkStream:
            address = await _address(host, port, allows_private=allows_private)
            return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)

        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(seconds)

    return Checked()


async def _address(host: str, port: int, *, allows_private: bool) -> str:
    """Return an address of a host; raises `RequestError` when one of its addresses is not public."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    for address in addresses:
        if not allows_private and not is_public(address):
            raise RequestError(f"{host} has the address {address}, which is not public", param="url")
    return addresses[0]


def is_public(address: str) -> bool:
    """Whether an address is one of the internet, and so are those it may stand for."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        within = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
        if ip in ipaddress.ip_network("64:ff9b::/96"):
            within.append(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
        if any(one is not None and not one.is_global for one in within):
            return False
        if ip.is_site_local:
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved
