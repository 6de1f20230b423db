"""What an OpenAI-compatible server's refusal means: its status and body as one of our errors. Pure.

Servers word the same fault in many ways; each pattern says whose words it knows.
"""

from __future__ import annotations

import email.utils
import re
import time
from contextlib import suppress
from typing import cast

import msgspec

from pyagent.core.errors import (
    BackendError,
    CapacityError,
    ContextOverflowError,
    PyAgentError,
    RequestError,
    UnsupportedError,
)


class Fault(msgspec.Struct):
    """What a server says went wrong, in OpenAI's fields and llama.cpp's. `forbidden` are fields it does not know."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: str | int | None = None
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None
    forbidden: list[str] = []


class _Detail(msgspec.Struct):
    type: str = ""
    loc: list[str | int] = []


class _ErrorBody(msgspec.Struct):
    error: Fault | str | None = None
    detail: object = None
    message: object = None


# in the words of vLLM and OpenAI, of litellm, and of llama.cpp
_TOO_LONG = re.compile(
    r"maximum context length is (\d{1,12})|ContextWindowExceeded()|exceeds? the available context size()"
)
# in the words of vLLM and OpenAI, newer and older
_NUM_TOKENS = re.compile(
    r"(?:contains (?:at least )?|resulted in )(\d{1,12})(?: input)? tokens|\((\d{1,12}) in the (?:messages|prompt)"
)
# in the words of vLLM, OpenAI, llama.cpp, Ollama and LM Studio
_NO_IMAGES = re.compile(
    r"(image|vision)[^.]* (not|only) supported|not support[^.]* (image|vision)|not a multi-?modal", re.IGNORECASE
)
# codes of OpenAI's
_UNSUPPORTED = frozenset({"unsupported_parameter", "unsupported_value", "unknown_parameter"})
# in the words of OpenAI (newer, older), of Groq, of Gemini's compatible API, and of litellm
_UNSUPPORTED_NAMES = re.compile(
    r"(?:Unknown|Unsupported) (?:parameter|value): '(\w{1,60})'"
    r"|Unrecognized request arguments? supplied: ([\w, ]{1,200})"
    r"|property '(\w{1,60})' is unsupported"
    r'|Unknown name "(\w{1,60})": Cannot find field'
    r"|UnsupportedParamsError.* parameters: \['([^\]]{1,200})'\]"
)
_UNFORBIDDEN = frozenset({"model", "messages", "prompt", "stream"})
"""Fields that no server can do without: one that refuses them means their value."""
_MAX_RETRY_AFTER_SECONDS = 86400.0


def map_error(backend: str, status: int, body: bytes, retry_after: str | None) -> PyAgentError:
    """Map an HTTP status to an error of ours, in this one place."""
    fault = _fault(body)
    text = f"{backend}: {fault.message or 'no reason given'} (HTTP {status})"
    if status in {400, 415, 422, 500, 501} and _NO_IMAGES.search(fault.message):
        text = f"{backend} cannot do images: {fault.message} (HTTP {status})"
        return UnsupportedError(text, backend=backend, fields=["images"])
    if status in {400, 404, 413, 415, 422}:
        return _lack(fault, backend, status) or _refusal(fault, status, text)
    if status == 508:
        return RequestError(text, code="loop_detected")
    if status in {401, 403}:
        hint = "name its API key in backends.api_keys"
        return BackendError(f"{text}; {hint}", backend=backend, retryable=False, status=status)
    if status == 429 or (status == 503 and retry_after):
        return CapacityError(text, retry_after_seconds=retry_after_seconds(retry_after))
    retryable = status >= 500 or status in {408, 409, 425}
    return BackendError(text, backend=backend, retryable=retryable, status=status)


def map_event(backend: str, fault: Fault) -> PyAgentError:
    """Map an error that came within a stream: there, too, vLLM tells what is wrong with a request."""
    text = f"{backend} broke off: {fault.message or 'no reason given'}"
    if (code := str(fault.code)) in {"400", "413", "422"}:
        status = int(code)
        return _lack(fault, backend, status) or _refusal(fault, status, text)
    return BackendError(text, backend=backend)


def told_failure(error: Exception) -> str:
    """A network failure in words a user can act on."""
    import httpx

    match error:
        case httpx.ConnectError() if any(word in str(error) for word in ("SSL", "TLS", "CERTIFICATE")):
            return f"no secure connection ({error}); is its certificate trusted, and https:// right?"
        case httpx.ConnectTimeout() | httpx.ConnectError():
            return f"cannot connect ({str(error) or 'timed out'}); is the server running?"
        case httpx.ReadTimeout():
            return "sent nothing for too long (backends.timeout_seconds)"
        case httpx.RemoteProtocolError() | httpx.ReadError():
            return "closed the connection in mid-answer"
        case _:
            return str(error) or type(error).__name__


def _lack(fault: Fault, backend: str, status: int) -> UnsupportedError | None:
    """Return the fields that the server says its model cannot be asked for, which another link's may."""
    fields = [name for name in _lacking(fault) if name not in _UNFORBIDDEN]
    if not fields:
        return None
    text = f"{backend} cannot do {', '.join(fields)}: {fault.message} (HTTP {status})"
    return UnsupportedError(text, backend=backend, fields=fields)


def _lacking(fault: Fault) -> list[str]:
    if fault.code in _UNSUPPORTED and fault.param:
        return [fault.param]
    if told := _UNSUPPORTED_NAMES.search(fault.message):
        return re.findall(r"\w+", next(filter(None, told.groups())))
    return fault.forbidden


def _refusal(fault: Fault, status: int, text: str) -> RequestError:
    code = str(fault.code or fault.type or "")
    told = _TOO_LONG.search(fault.message)
    if told or "context_length_exceeded" in code or fault.type == "exceed_context_size_error":
        limit = fault.n_ctx or int((told and told[1]) or 0)
        counted = _NUM_TOKENS.search(fault.message)
        num_tokens = fault.n_prompt_tokens or int((counted and (counted[1] or counted[2])) or 0)
        return ContextOverflowError(text, num_tokens=num_tokens, limit=limit)
    if code == "model_not_found" or (status == 404 and fault.param in {None, "model"}):
        return RequestError(text, param="model", code="model_not_found")
    return RequestError(text, param=fault.param, code=code or "invalid_request")


def _fault(body: bytes) -> Fault:
    """Return what the body says went wrong, in any of the shapes that servers use."""
    try:
        said = msgspec.json.decode(body, type=_ErrorBody)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Fault(message=" ".join(body[:200].decode(errors="replace").split()))
    if isinstance(said.error, Fault):
        return said.error
    detail = said.detail
    if isinstance(said.message, dict):
        detail = cast("dict[str, object]", said.message).get("detail")
    if isinstance(detail, list):
        return _of_details(cast("list[object]", detail))
    told = cast("object", said.error or said.message or detail or "")
    return Fault(message=str(told)[:2000])


def _of_details(details: list[object]) -> Fault:
    """Pydantic's list of faults, as vLLM, Mistral and other FastAPI servers send it."""
    forbidden: list[str] = []
    for detail in details:
        with suppress(msgspec.ValidationError):
            found = msgspec.convert(detail, _Detail)
            if found.type == "extra_forbidden" and len(found.loc) > 1:
                forbidden.append(str(found.loc[1]))
    return Fault(message=str(details)[:200], forbidden=forbidden)


def retry_after_seconds(header: str | None) -> float | None:
    """Retry-After as seconds: a number or an HTTP date (RFC 9110, section 10.2.3); None when it says nothing."""
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return min(max(0.0, seconds), _MAX_RETRY_AFTER_SECONDS)
