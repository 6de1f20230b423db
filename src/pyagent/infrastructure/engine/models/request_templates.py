"""Chat templates that requests bring: each is used for its request alone, and then forgotten.

Nothing made of one is kept: no conversation's log, so that what it writes stands in no other prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from pyagent.core.errors import ModelError, RequestError
from pyagent.infrastructure.engine.tokens.template_sandbox import spending
from pyagent.infrastructure.engine.tokens.templates import ChatTemplate

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.tokens import ModelTokenizer

PARAM = "chat_template"
_MAX_CHARS = 64 * 1024
"""Of a template: those of models have 30,000 at most; compiling more would hold up others."""


class RequestTemplate(ChatTemplate):
    """A request's own chat template, whose faults are the request's."""

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[object] = (),
        template_kwargs: Mapping[str, object] | None = None,
        *,
        begins_answer: bool = True,
    ) -> str:
        """Return the conversation as text, as a model's template does."""
        try:
            return super().render(messages, tools, template_kwargs, begins_answer=begins_answer)
        except ModelError as error:
            _refuse(error)


def tokenizer_for(source: str, tokenizer: ModelTokenizer, *, is_trusted: bool) -> ModelTokenizer:
    """Return a model's tokenizer with a request's template. Raises `RequestError`."""
    if not is_trusted:
        text = "chat_template is not supported: requests may bring one where engine.trust_request_chat_template is set"
        raise RequestError(text, param=PARAM, code="unsupported_parameter")
    if len(source) > _MAX_CHARS:
        raise RequestError(f"chat_template has {len(source)} characters; {_MAX_CHARS} are taken at most", param=PARAM)
    try:
        with spending():  # all that is made to learn what it writes, too
            return tokenizer.with_template(RequestTemplate(source, tokenizer.template_texts, PARAM))
    except ModelError as error:
        _refuse(error)


def _refuse(error: ModelError) -> NoReturn:
    raise RequestError(str(error).removeprefix(f"{PARAM}: "), param=PARAM) from error
