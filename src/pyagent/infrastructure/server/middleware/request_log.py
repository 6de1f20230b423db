"""One line of log for each request that is over, at level info: who asked what of whom, how it ended, and its times.

No text of requests or answers, no key and no header is in it: a key is told by its name, a path that no route has as
`other`. What fails on our side is told at level warning or error, under the same request id (`errors`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from pyagent.core.messages import Usage

logger = logging.getLogger("pyagent.server.requests")


def log_request(method: str, path: str, status: str, seconds: float, state: Mapping[str, object]) -> None:
    """Log a request by what its routes noted in `state`; `status` is HTTP's, or what broke the answer off."""
    if not logger.isEnabledFor(logging.INFO):
        return
    fields: dict[str, object] = {
        "request_id": state.get("request_id", ""),
        "method": method,
        "path": path,
        "status": status,
        "seconds": round(seconds, 4),
    }
    fields |= {
        name: state[name] for name in ("model", "backend", "first_token_seconds") if state.get(name) not in {None, ""}
    }
    fields |= {"key": state["client"]} if state.get("client") else {}
    usage = cast("Usage | None", state.get("usage"))
    if usage is not None:
        fields |= {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
            "completion_tokens": usage.completion_tokens,
        }
    logger.info("request", extra=fields)
