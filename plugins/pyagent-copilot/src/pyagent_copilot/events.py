"""What the Copilot CLI is asked, and what the lines of its `--output-format json` mean. Pure; starts nothing."""

from __future__ import annotations

import msgspec

from pyagent.plugin import BackendError, CapacityError, ChatRequest, PyAgentError, RequestError

INSTALL = "install it with: npm install -g @github/copilot"
_SIGN_IN = "sign in with: copilot login"
_UPDATE = "update it with: npm install -g @github/copilot"
_SPEAKERS = {"assistant": "Assistant", "user": "User", "tool": "User"}


class _Data(msgspec.Struct):
    delta_content: str = msgspec.field(default="", name="deltaContent")
    content: str = ""
    model: str = ""
    message: str = ""
    status: int | None = msgspec.field(default=None, name="statusCode")


class Event(msgspec.Struct):
    """One line. Only these say something of the answer: pieces of it, the whole of it, an error, the end."""

    type: str = ""
    data: _Data = msgspec.field(default_factory=_Data)
    exit_code: int | None = msgspec.field(default=None, name="exitCode")


def arguments(model: str) -> list[str]:
    """The command's arguments: one answer as JSON lines, no tools, no questions, nothing read from the folder."""
    words = ["--output-format", "json", "--stream", "on", "--no-color", "--no-auto-update", "--no-custom-instructions"]
    words += ["--no-ask-user", "--disable-builtin-mcps", "--no-remote", "--log-level", "none"]
    words.append("--available-tools=none")  # a list of tools with no tool in it: an empty one would mean all
    return [*words, "--model", model] if model else words


def prompt_of(request: ChatRequest) -> str:
    """The conversation as one text; a single question goes as it is."""
    system = [message.text for message in request.messages if message.role in {"system", "developer"}]
    turns = [message for message in request.messages if message.role in _SPEAKERS]
    if len(turns) == 1:
        return "\n\n".join([*system, turns[0].text])
    told = [f"{_SPEAKERS[message.role]}: {message.text}" for message in turns]
    return "\n\n".join([*system, *told, "Give the assistant's next answer, and only that."])


def decode_event(line: bytes, backend: str) -> Event:
    """One line; raises `BackendError` for a line that is no event."""
    try:
        return msgspec.json.decode(line, type=Event)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        text = f"{backend} wrote {line[:80].decode(errors='replace')!r}, which is no event; {_UPDATE}"
        raise BackendError(text, backend=backend) from error


def error_of(event: Event, backend: str) -> PyAgentError:
    """The error that an event of type `session.error` stands for."""
    text, status = f"{backend}: {' '.join(event.data.message.split())}", event.data.status
    if status == 404 or ("model" in text.lower() and "not available" in text.lower()):
        return RequestError(text, param="model", code="model_not_found")
    if status == 429:
        return CapacityError(text)
    if status in {401, 403}:
        return BackendError(f"{text}; {_SIGN_IN}", backend=backend, retryable=False, status=status)
    return BackendError(text, backend=backend, status=status)


def exit_error(code: int, stderr: str, backend: str) -> PyAgentError:
    """The error of a program that ended without an answer."""
    said = " ".join(stderr.split())[:300]
    if "authenticat" in said:
        return BackendError(f"{backend} is not signed in; {_SIGN_IN}", backend=backend, retryable=False)
    if "unknown option" in said or "unexpected argument" in said:
        return BackendError(f"{backend} is too old: {said}; {_UPDATE}", backend=backend, retryable=False)
    if "from --model flag is not available" in said or "model is not available" in said:
        return RequestError(f"{backend}: {said}", param="model", code="model_not_found")
    return BackendError(f"{backend} ended with status {code}: {said or 'no reason given'}", backend=backend)
