"""Whether a whole answer has the form that was asked for: JSON, a schema, one of some choices. Pure."""

from __future__ import annotations

from typing import cast

import msgspec

from pyagent.core.emulation.forms import fault_of, schema_of
from pyagent.core.errors import RequestError
from pyagent.core.messages import ResponseFormat


def fault_in(text: str, wanted: ResponseFormat | None) -> str:
    """What is wrong with an answer's form; empty when it is as asked for, or when its schema cannot be checked."""
    if wanted is None or wanted.type == "text":
        return ""
    if wanted.type == "choice":
        return "" if text in (wanted.choice or ()) else f"{text[:60]!r} is none of the choices"
    try:
        value = cast("object", msgspec.json.decode(text.encode(errors="surrogatepass")))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return f"it is not JSON: {error}"
    try:
        return fault_of(value, schema_of(wanted), "response_format") or ""
    except RequestError:
        return ""  # no link can be blamed for it
