"""What is wrong with a command line, in words of ours: the option, what was given, and what it takes.

The one place that knows how typer, and pydantic with which it reads values, word their errors.
"""

from __future__ import annotations

import re
from typing import Any

from typer import BadParameter, TyperException

from pyagent.core.nearest import nearest

_WANTS_VALUE = re.compile(r"^Option '([^']*)' requires an argument\.$")
_TAKES_NONE = re.compile(r"^Option '([^']*)' does not take a value\.$")
_TOO_MANY = re.compile(r"^Got unexpected extra arguments?(?:\(s\))? \((.*)\)$", re.DOTALL)
_SHOWN_CHARS = 80


def usage_fault(error: TyperException) -> str:
    """Return what is wrong, in one line."""
    message = error.format_message()
    if (wanting := _WANTS_VALUE.match(message)) is not None:
        return f"{wanting[1]} wants a value"
    if (flag := _TAKES_NONE.match(message)) is not None:
        return f"{flag[1]} takes no value"
    if (many := _TOO_MANY.match(message)) is not None:
        return f"there is no place for '{many[1][:_SHOWN_CHARS]}'"
    option = getattr(error, "option_name", None)
    if isinstance(option, str) and hasattr(error, "possibilities"):
        return _unknown_option(error, option)
    if isinstance(error, BadParameter) and error.param is not None:
        return _wrong_value(error, error.param)
    return " ".join(message.split())


def _unknown_option(error: Any, option: str) -> str:  # Any: the errors of typer's parser have no public type
    params: list[Any] = [] if error.ctx is None else error.ctx.command.params
    names: list[str] = [name for param in params for name in param.opts if name.startswith("--")]
    word_to_name = {name.removeprefix("--"): name for name in names}
    found = nearest(option.lstrip("-"), word_to_name)
    text = f"there is no option {option[:_SHOWN_CHARS]!r}"
    return f"{text}; did you mean {word_to_name[found]!r}?" if found else text


def _wrong_value(error: BadParameter, param: Any) -> str:  # Any: as above
    name = max((one for one in param.opts if one.startswith("-")), key=len, default="")
    name = name or str(param.metavar or param.name).strip("[].").upper()
    if hasattr(error, "param_type"):
        return f"{name} is missing"
    told = _told(error.__cause__)
    if told is None:
        return f"{name}: {error.message}"
    given, words = told
    return f"{name} = {str(given)[:_SHOWN_CHARS]!r}: {_allowed(param.type_descriptor) or words}"


def _told(cause: BaseException | None) -> tuple[object, str] | None:
    """Return the value that pydantic refused, and its words; None where another refused it."""
    errors = getattr(cause, "errors", None)
    if errors is None:
        return None
    first = errors()[0]
    words = str(first["msg"]).partition(", unable to parse")[0]
    return first["input"], re.sub(r"^(Input should be|Value error,)", "expected", words)


def _allowed(kind: Any) -> str:  # Any: typer's own description of a parameter
    """Return what a choice or a number takes; empty for other kinds."""
    if kind.choices is not None:
        words = [repr(getattr(choice, "value", choice)) for choice in kind.choices]
        return f"expected {', '.join(words[:-1])} or {words[-1]}"
    if kind.annotation not in {int, float}:
        return ""
    least, most = kind.parameter_info.min, kind.parameter_info.max
    noun = "a whole number" if kind.annotation is int else "a number"
    if least is None:
        return f"expected {noun}"
    return f"expected {noun} from {least}" + ("" if most is None else f" to {most}")
