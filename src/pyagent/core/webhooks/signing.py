"""Signatures of webhooks: Standard Webhooks (https://www.standardwebhooks.com) and GitHub's `X-Hub-Signature-256`.

A signature is checked in constant time and before anything reads the body. Errors never tell a secret, nor what the
right signature would have been. Pure.
"""

from __future__ import annotations

import binascii
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from pyagent.core.errors import RequestError

SECRET_PREFIX = "whsec_"  # noqa: S105 - what secrets begin with
DEFAULT_TOLERANCE_SECONDS = 300.0
_LEAST_BYTES, _MOST_BYTES, _NEW_BYTES = 24, 64, 32
"""Of a key, as the specification has them."""
_MAX_ID_CHARACTERS = 256
_MAX_TIMESTAMP_DIGITS = 12
_MAX_SIGNATURES = 20


class Signed(NamedTuple):
    """What a right signature stands for: the message's id, which each try to deliver it has, and when it was signed."""

    id: str
    timestamp: int | None


def new_secret() -> str:
    """Return a new random secret."""
    return SECRET_PREFIX + b64encode(secrets.token_bytes(_NEW_BYTES)).decode()


def key_of(secret: str) -> bytes:
    """Return the key that a secret (`whsec_...`) holds; raises `RequestError` for another form."""
    try:
        key = b64decode(secret.strip().removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not _LEAST_BYTES <= len(key) <= _MOST_BYTES:
        text = f"a secret is whsec_ and {_LEAST_BYTES} to {_MOST_BYTES} bytes in base64; make one with `webhooks add`"
        raise RequestError(text, param="secret", code="wrong_secret")
    return key


def sign(keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> str:
    """Return the header `webhook-signature`: one signature for each key, so that a key can be replaced."""
    return " ".join(f"v1,{b64encode(_digest(key, message_id, timestamp, body)).decode()}" for key in keys)


def signed_headers(keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the three headers of a delivery."""
    signature = sign(keys, message_id, timestamp, body)
    return {"webhook-id": message_id, "webhook-timestamp": str(timestamp), "webhook-signature": signature}


def verify(
    headers: Mapping[str, str],
    body: bytes,
    keys: Sequence[bytes],
    now: float,
    tolerance_seconds: float = DEFAULT_TOLERANCE_SECONDS,
) -> Signed:
    """Return what a delivery's headers (their names in lower case) sign; raises `RequestError` saying what is wrong."""
    message_id = _header(headers, "webhook-id")
    if not (message_id.isascii() and message_id.isprintable()) or "." in message_id:
        raise _wrong("webhook-id has printable ASCII characters without full stops")  # a stop ends it in what is signed
    timestamp = _timestamp(_header(headers, "webhook-timestamp"), now, tolerance_seconds)
    given = _header(headers, "webhook-signature", _MAX_SIGNATURES * 100).split()[:_MAX_SIGNATURES]
    right = [b64encode(_digest(key, message_id, timestamp, body)) for key in keys]
    signatures = [one.partition(",")[2].encode() for one in given if one.startswith("v1,")]
    if not _any_equal(signatures, right):
        raise _wrong("no signature of webhook-signature is right; is the secret the sender's, the body as it was sent?")
    return Signed(message_id, timestamp)


def verify_github(headers: Mapping[str, str], body: bytes, secrets_: Sequence[bytes]) -> Signed:
    """Return what a delivery of GitHub's signs: the body alone, so that its id is the body's hash.

    GitHub's own id and its kind of event are not signed: a delivery that was caught could come again by another id.
    Raises `RequestError`.
    """
    given = _header(headers, "x-hub-signature-256").removeprefix("sha256=").encode()
    right = [hmac.digest(secret, body, "sha256").hex().encode() for secret in secrets_]
    if not _any_equal([given], right):
        raise _wrong("x-hub-signature-256 is not right; is the secret that of the hook's settings at GitHub?")
    return Signed(f"github-{sha256(body).hexdigest()}", None)


def _digest(key: bytes, message_id: str, timestamp: int, body: bytes) -> bytes:
    return hmac.digest(key, f"{message_id}.{timestamp}.".encode() + body, "sha256")


def _any_equal(given: Sequence[bytes], right: Sequence[bytes]) -> bool:
    """Whether one of each is equal, in a time that does not tell which, or how far."""
    found = [hmac.compare_digest(one, other) for one in given for other in right]
    return any(found)


def _header(headers: Mapping[str, str], name: str, most: int = _MAX_ID_CHARACTERS) -> str:
    value = headers.get(name, "")
    if not 0 < len(value) <= most:
        raise _wrong(f"the header {name} is missing" if not value else f"the header {name} is over {most} characters")
    return value


def _timestamp(text: str, now: float, tolerance_seconds: float) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_TIMESTAMP_DIGITS):
        raise _wrong("webhook-timestamp is whole seconds since 1970")
    timestamp = int(text)
    if abs(now - timestamp) > tolerance_seconds:
        side = "old" if timestamp < now else "far ahead"
        raise _wrong(f"webhook-timestamp is too {side}: over {tolerance_seconds:g} s from this machine's clock")
    return timestamp


def _wrong(text: str) -> RequestError:
    return RequestError(text, param="signature", code="wrong_signature")
