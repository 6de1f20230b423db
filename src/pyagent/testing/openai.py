"""A fake OpenAI-compatible server, true to its wire: server-sent events, tool calls in deltas, errors in its shape.

Checked with the `openai` client (tests/integration/test_fake_openai.py).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pyagent.testing.servers import Fault, serve
from pyagent.testing.stand_in import GREETING, sample_call, sample_of

Json = dict[str, object]
_FORM_FIELDS = {"vllm": ("structured_outputs",), "sglang": ("regex", "ebnf"), "llamacpp": ("grammar",)}


@dataclass(slots=True)
class OpenAIServer:
    """A running fake. Change its fields between requests; read what came in `requests`.

    `answer` may depend on the request; None means: JSON of the schema asked for, a call of the first tool (with
    `arguments`, or with a sample of its schema), or a greeting. With `api_key`, others are refused. `status` and
    `retry_after` refuse every request; without `reads_images`, those with images are refused.
    With `scores_prompts` it knows `echo` and `prompt_logprobs` as vLLM does, else it ignores them as most do.
    `owned_by` is vllm, sglang or llamacpp for one of these, which answers `constrained` where its own fields ask for a
    form; without that it leaves them out, as older versions do. Requests with `refused` fields are, within
    the stream with `refuses_late`.
    """

    models: tuple[str, ...] = ("fake-1",)
    answer: str | Callable[[Json], str] | None = None
    arguments: Json | None = None
    reasoning: str = ""
    reads_images: bool = True
    scores_prompts: bool = True
    owned_by: str = "fake"
    constrained: str | None = None
    refused: tuple[str, ...] = ()
    refuses_late: bool = False
    fault: Fault | None = None
    delay_seconds: float = 0.0
    api_key: str = ""
    status: int = 200
    retry_after: str = ""
    url: str = ""
    requests: list[Json] = field(default_factory=list[Json])
    num_running: int = 0
    """Streams under way."""

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/v1/embeddings", self._embed, methods=["POST"]),
            ]
        )

    def _refusal(self, request: Request) -> Response | None:
        if self.api_key and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return _error(401, "Incorrect API key provided", "invalid_api_key")
        if self.status != 200:
            headers = {"retry-after": self.retry_after} if self.retry_after else {}
            return _error(self.status, "refused by the script", None, headers)
        return None

    async def _models(self, request: Request) -> Response:
        listed = [{"id": model, "object": "model", "created": 1, "owned_by": self.owned_by} for model in self.models]
        return self._refusal(request) or JSONResponse({"object": "list", "data": listed})

    async def _embed(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        body = cast("Json", json.loads(await request.body()))
        self.requests.append(body)
        texts = cast("list[str]", body["input"])
        rows = [{"object": "embedding", "index": i, "embedding": [float(len(t)), 1.0]} for i, t in enumerate(texts)]
        usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
        return JSONResponse({"object": "list", "data": rows, "model": body["model"], "usage": usage})

    async def _complete(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        body = cast("Json", json.loads(await request.body()))
        self.requests.append(body)
        if body.get("model") not in self.models:
            return _error(404, f"The model `{body.get('model')}` does not exist", "model_not_found")
        if not self.reads_images and b'"image_url"' in await request.body():
            return _error(400, "this model does not support image input", None)
        if found := [name for name in self.refused if name in body]:
            return self._refused(f"{found[0]} is not possible here")
        reply = _Completion(self, body, is_chat=request.url.path.endswith("chat/completions"))
        if body.get("stream"):
            return StreamingResponse(self._stream(reply), media_type="text/event-stream")
        return JSONResponse(reply.whole())

    def _refused(self, text: str) -> Response:
        if not self.refuses_late:
            return _error(400, text, None)
        event = _event({"error": {"message": text, "type": "BadRequestError", "param": None, "code": 400}})
        return StreamingResponse(iter([event, "data: [DONE]\n\n"]), media_type="text/event-stream")

    async def _stream(self, reply: _Completion) -> AsyncIterator[str]:
        self.num_running += 1
        try:
            for index, chunk in enumerate(reply.chunks()):
                await asyncio.sleep(self.delay_seconds)
                if self.fault is not None and index == self.fault.at:
                    if self.fault.kind == "error":
                        yield _event({"error": {"message": self.fault.text}})
                    await self.fault.strike()
                    return
                yield _event(chunk)
            yield "data: [DONE]\n\n"
        finally:
            self.num_running -= 1


@dataclass(frozen=True, slots=True)
class _Completion:
    server: OpenAIServer
    body: Json
    is_chat: bool

    def chunks(self) -> Iterator[Json]:
        """The chunks of a streamed answer, the last with the usage."""
        num_answers = cast("int", self.body.get("n") or 1)
        for index in range(num_answers):
            calls = self._calls()
            pieces = [self._echo()] if self._echo() else []
            pieces += re.findall(r"\s*\S+|\s+$", "" if calls else self._text())
            for piece in re.findall(r"\s*\S+", self.server.reasoning) if self.is_chat else ():
                yield self._chunk(index, {"reasoning_content": piece})
            for piece in pieces:
                yield self._chunk(index, {"content": piece})
            for call in calls:  # the name first, then the arguments in two halves
                function = cast("Json", call["function"])
                text = cast("str", function["arguments"])
                head = {**call, "index": 0, "function": {"name": function["name"], "arguments": ""}}
                yield self._chunk(index, {"tool_calls": [head]})
                for half in (text[: len(text) // 2], text[len(text) // 2 :]):
                    yield self._chunk(index, {"tool_calls": [{"index": 0, "function": {"arguments": half}}]})
            yield self._chunk(index, {}, "tool_calls" if calls else "stop")
        yield self._head("chunk") | {"choices": [], "usage": self._usage(num_answers)}

    def whole(self) -> Json:
        """The answer in one piece."""
        num_answers, calls = cast("int", self.body.get("n") or 1), self._calls()
        message: Json = {"role": "assistant", "content": None if calls else self._text()}
        message |= {"tool_calls": calls} if calls else {}
        said: Json = {"message": message} if self.is_chat else {"text": self._echo() + self._text()}
        said |= {} if self.is_chat else self._prompt_logprobs()
        finish = "tool_calls" if calls else "stop"
        choices = [{"index": index, "finish_reason": finish, **said} for index in range(num_answers)]
        body = self._head("completion") | {"choices": choices, "usage": self._usage(num_answers)}
        return body | (self._prompt_logprobs() if self.is_chat else {})

    def _echo(self) -> str:
        knows_echo = self.server.scores_prompts and not self.is_chat
        return cast("str", self.body["prompt"]) if knows_echo and self.body.get("echo") else ""

    def _prompt_logprobs(self) -> Json:
        """A prompt of two tokens, the second the likeliest but one."""
        if not self.server.scores_prompts or self.body.get("prompt_logprobs") is None:
            return {}
        own = {"7": {"logprob": -1.5, "rank": 2, "decoded_token": " upon"}}
        best = {"5": {"logprob": -0.5, "rank": 1, "decoded_token": " more"}}
        return {"prompt_logprobs": [None, {**own, **(best if self.body["prompt_logprobs"] else {})}]}

    def _text(self) -> str:
        if self.server.constrained is not None and self._asks_for_a_form():
            return self.server.constrained
        answer = self.server.answer
        if answer is not None:
            return answer if isinstance(answer, str) else answer(self.body)
        form = cast("Json", self.body.get("response_format") or {})
        if form.get("type") == "json_schema":
            return json.dumps(sample_of(cast("Json", cast("Json", form["json_schema"])["schema"])))
        return "{}" if form.get("type") == "json_object" else GREETING

    def _asks_for_a_form(self) -> bool:
        form = cast("Json", self.body.get("response_format") or {})
        if self.server.owned_by == "sglang" and form.get("type") == "structural_tag":
            return True
        return any(name in self.body for name in _FORM_FIELDS.get(self.server.owned_by, ()))

    def _calls(self) -> list[Json]:
        call = sample_call(self.body.get("tools"), self.body.get("messages"))
        if call is None or self.server.answer is not None or self.body.get("tool_choice") == "none":
            return []
        function = {
            "name": call[0],
            "arguments": json.dumps(call[1] if self.server.arguments is None else self.server.arguments),
        }
        return [{"id": "call_abc", "type": "function", "function": function}]

    def _head(self, what: str) -> Json:
        kind = f"chat.completion{'.chunk' if what == 'chunk' else ''}" if self.is_chat else "text_completion"
        return {"id": "cmpl-1", "object": kind, "created": 1, "model": self.body["model"]}

    def _chunk(self, index: int, delta: Json, finish: str | None = None) -> Json:
        said: Json = {"delta": delta} if self.is_chat else {"text": delta.get("content", "")}
        return self._head("chunk") | {"choices": [{"index": index, "finish_reason": finish, **said}]}

    def _usage(self, num_answers: int) -> Json:
        asked = self.body.get("messages") or self.body.get("prompt")
        num_prompt, num_answer = len(json.dumps(asked).split()), num_answers * max(1, len(self._text().split()))
        return {"prompt_tokens": num_prompt, "completion_tokens": num_answer, "total_tokens": num_prompt + num_answer}


@contextmanager
def openai_server(**scripted: object) -> Generator[OpenAIServer]:
    """A fake OpenAI-compatible server on a free port; takes the fields of `OpenAIServer`."""
    server = OpenAIServer(**scripted)  # pyright: ignore[reportArgumentType]
    with serve(server.app()) as url:
        server.url = f"{url}/v1"
        yield server


def _event(chunk: Json) -> str:
    return f"data: {json.dumps(chunk)}\n\n"


def _error(status: int, message: str, code: str | None, headers: dict[str, str] | None = None) -> Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return JSONResponse({"error": error}, status_code=status, headers=headers)
