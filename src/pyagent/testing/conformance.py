"""What every backend must do, as a pytest class: a plugin's author derives from it and says how to make the backend.

    class TestMine(BackendConformance):
        @contextmanager
        def subject(self):
            with my_fake_server() as url:
                yield Subject(lambda: MyBackend(url), scheme="mine")

Nothing is assumed of what a model says. What a backend lacks it must refuse by name, before anything is answered, with
a `BackendError` that is not worth another try, so that a chain goes on.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TypeVar, cast

import msgspec
import pytest

from pyagent.core.abilities import ABILITIES, FORMS, SOFT, Abilities, needs
from pyagent.core.backends import Answer, Backend, collect
from pyagent.core.capabilities import Capabilities, capabilities_of
from pyagent.core.emulation.schemas import fault_of
from pyagent.core.errors import (
    BackendError,
    DeadlineError,
    InvalidOutputError,
    ModelError,
    PyAgentError,
    RequestError,
    UnsupportedError,
)
from pyagent.core.messages import (
    BeamSearch,
    ChatDelta,
    ChatRequest,
    EmbedRequest,
    FunctionCall,
    FunctionDefinition,
    ImagePart,
    ImageUrl,
    JsonObject,
    JsonSchemaFormat,
    Message,
    ResponseFormat,
    SamplingParams,
    TextPart,
    Tool,
    ToolCall,
)
from pyagent.core.plugin_checks import backend_problem
from pyagent.core.response_format import GrammarFormat
from pyagent.core.sampling_params import LogitsProcessorSpec
from pyagent.core.sampling_schedules import PenaltySchedule, TemperatureSchedule
from pyagent.core.structural_tags import RegexContent, Tag
from pyagent.core.structured_output.matching import fault_of_text

T = TypeVar("T")

_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
_PARAMETERS: JsonObject = {"type": "object", "properties": {"city": {"type": "string"}}}
_TESTED_ALONE = {"tools", "strict", "n", *FORMS}
_TESTED_APART = _TESTED_ALONE | {"logits_processors"}
_TOOL = Tool(FunctionDefinition("look_up", "weather", _PARAMETERS))
_CALL = ToolCall(id="call_1", function=FunctionCall("look_up", '{"city": "Rome"}'))
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_PRIVATE_TEXT = "tangerine-4711"
_LONGEST_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Subject:
    """A backend under test.

    `make` gives a new one each time; `make_down`, one whose other side is not there. `unknown_model` is a model that it
    does not have; None where any name is served. `num_running` counts the answers the other side still works on.
    `lacks` are fields that the model under test has no way for, though backends of its kind have.
    """

    make: Callable[[], Backend]
    scheme: str
    make_down: Callable[[], Backend] | None = None
    unknown_model: str | None = "no-such-model"
    num_running: Callable[[], int] | None = None
    lacks: Abilities = frozenset()

    @property
    def capabilities(self) -> Capabilities:
        """What the backend says of itself."""
        return cast("Capabilities", capabilities_of(self.make()))


class BackendConformance:
    """Derive from it, and define `subject`."""

    def subject(self) -> AbstractContextManager[Subject]:
        """The backend under test, for the time of one test."""
        raise NotImplementedError

    # -- answers ---------------------------------------------------------------------------------------------------

    def test_stream_has_the_right_shape(self) -> None:
        """Deltas name their backend; one finish reason and one count of tokens come, with the last."""
        answer = self._run(lambda backend: collect(backend.chat(_chat())))
        assert answer.text or any(delta.reasoning for delta in answer.deltas)
        _check_shape(answer)

    def test_tokens_are_counted(self) -> None:
        """The last delta says how many tokens the prompt and the answer have, and their sum."""
        greedy = SamplingParams(max_tokens=64, temperature=0)  # sampled, an answer may end before its first token
        usage = self._run(lambda backend: collect(backend.chat(_chat(sampling=greedy)))).last.usage
        assert usage is not None
        assert usage.prompt_tokens > 0
        assert usage.completion_tokens > 0
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens

    def test_host_takes_the_backend(self) -> None:
        """It has all methods, a name that begins with its scheme, and capabilities of the right types and names."""
        with self.subject() as subject:
            assert backend_problem(subject.make(), subject.scheme) is None

    def test_several_requests_at_once(self) -> None:
        """Answers under way at the same time do not mix, and each is whole."""

        async def work(backend: Backend) -> list[Answer]:
            return await asyncio.gather(*(collect(backend.chat(_chat(f"say {index}"))) for index in range(6)))

        for answer in self._run(work):
            _check_shape(answer)

    def test_backend_serves_one_event_loop_after_another(self) -> None:
        """Programs call `asyncio.run` more than once with one backend."""
        with self.subject() as subject:
            backend = subject.make()
            for _ in range(2):
                _check_shape(asyncio.run(_bounded(collect(backend.chat(_chat())))))
            asyncio.run(_bounded(backend.close()))

    # -- leaving ---------------------------------------------------------------------------------------------------

    def test_closing_the_stream_stops_the_work(self) -> None:
        """A caller that leaves after the first piece frees the other side, and the next request is answered."""
        with self.subject() as subject:

            async def work() -> Answer:
                backend = subject.make()
                stream = backend.chat(_chat())
                await anext(stream)
                await cast("AsyncGenerator[ChatDelta, None]", stream).aclose()
                if subject.num_running is not None:
                    await _until(lambda: not subject.num_running or subject.num_running() == 0)
                try:
                    return await collect(backend.chat(_chat()))
                finally:
                    await backend.close()

            _check_shape(asyncio.run(_bounded(work())))

    def test_cancelling_the_reader_stops_the_work(self) -> None:
        """A task that is cancelled while it reads ends at once, and the next request is answered."""

        async def work(backend: Backend) -> Answer:
            task = asyncio.create_task(collect(backend.chat(_chat())))
            await asyncio.sleep(0.01)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            return await collect(backend.chat(_chat()))

        _check_shape(self._run(work))

    def test_deadline_is_kept(self) -> None:
        """A request whose time is up is a `DeadlineError`, and leaves the backend usable."""

        async def work(backend: Backend) -> Answer:
            with pytest.raises(DeadlineError):
                await collect(backend.chat(_chat(timeout_seconds=1e-6)))
            return await collect(backend.chat(_chat(timeout_seconds=_LONGEST_SECONDS)))

        _check_shape(self._run(work))

    def test_close_is_safe_twice(self) -> None:
        """Closing twice, also without a request before, is no error."""
        with self.subject() as subject:

            async def work() -> None:
                for is_used in (False, True):
                    backend = subject.make()
                    if is_used:
                        await collect(backend.chat(_chat()))
                    await backend.close()
                    await backend.close()

            asyncio.run(_bounded(work()))

    # -- errors ----------------------------------------------------------------------------------------------------

    def test_unknown_model_is_model_not_found(self) -> None:
        """A model that is not there is a `RequestError` whose code lets a chain go on."""
        with self.subject() as subject:
            if subject.unknown_model is None:
                pytest.skip("it serves any name")
            with pytest.raises(RequestError) as caught:
                _run(subject, lambda backend: collect(backend.chat(_chat(model=subject.unknown_model))))
        assert caught.value.code == "model_not_found"

    def test_absent_other_side_is_told_in_a_sentence(self) -> None:
        """Without a server, health says so without raising, and a request raises an error that names what to do."""
        with self.subject() as subject:
            if subject.make_down is None:
                pytest.skip("it has no other side")

            async def work() -> str:
                backend = subject.make_down() if subject.make_down else subject.make()
                health = await backend.health()
                assert not health.is_ready
                with pytest.raises((BackendError, ModelError)) as caught:
                    await collect(backend.chat(_chat()))
                await backend.close()
                assert health.detail
                return str(caught.value)

            text = asyncio.run(_bounded(work()))
        assert "\n" not in text
        assert "Traceback" not in text

    def test_health_and_models_agree(self) -> None:
        """A backend that answers is ready, and lists its models without doubles, each under a backend's name."""

        async def work(backend: Backend) -> None:
            assert (await backend.health()).is_ready
            models = await backend.models()
            assert len({(model.id, model.backend) for model in models}) == len(models)
            assert all(model.backend for model in models)

        self._run(work)

    # -- fields ----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "field",
        sorted(ABILITIES - _TESTED_APART),
    )
    def test_field_is_served_or_refused_by_name(self, field: str) -> None:
        """A field is honoured, or refused by its name; hints are left out at most, and named in `usage.ignored`."""
        request = _REQUESTS[field]
        with self.subject() as subject:
            answer = _served(subject, request, field, mode="emulate")
            abilities = subject.capabilities.abilities - subject.lacks
        if answer is not None:
            _check_shape(answer)
            assert (field in answer.usage.ignored) == (field in SOFT - abilities)

    def test_unknown_logits_processor_is_refused_by_name(self) -> None:
        """A logits processor that no plugin brings is refused, and so is each where no plugin's can be run."""
        named = _sampled(logits_processors=(LogitsProcessorSpec("brought-by-no-plugin"),))
        with self.subject() as subject, pytest.raises((UnsupportedError, RequestError), match=r"logits.processor"):
            _run(subject, lambda backend: collect(backend.chat(named)))

    @pytest.mark.parametrize("mode", ["emulate", "refuse"])
    def test_tools_are_called_or_refused(self, mode: str) -> None:
        """A call of a tool has a name that was offered and arguments that are a JSON object; else tools are refused."""
        with self.subject() as subject:
            answer = _served(subject, _chat(tools=[_TOOL]), "tools", mode)
            past = [
                Message("user", "weather?"),
                Message("assistant", tool_calls=[_CALL]),
                Message("tool", '{"degrees": 20}', tool_call_id="call_1"),
            ]
            told = _served(subject, ChatRequest(messages=past, tools=[_TOOL]), "tools", mode)
        if answer is not None and told is not None:
            calls = answer.tool_calls
            assert all(call.function.name == "look_up" and call.id for call in calls)
            assert all(isinstance(json.loads(call.function.arguments), dict) for call in calls)
            assert (answer.last.finish_reason == "tool_calls") == bool(calls)
            _check_shape(told)

    @pytest.mark.parametrize("mode", ["emulate", "refuse"])
    def test_arguments_of_a_strict_tool_follow_its_schema_or_are_refused(self, mode: str) -> None:
        """What a strict tool is called with follows the tool's schema, checked here; else that is refused by name."""
        strict = Tool(msgspec.structs.replace(_TOOL.function, strict=True))
        with self.subject() as subject:
            answer = _served(subject, _chat(tools=[strict]), "strict", mode)
        for call in [] if answer is None else answer.tool_calls:
            assert fault_of(json.loads(call.function.arguments), _PARAMETERS, "tools") is None

    @pytest.mark.parametrize("mode", ["emulate", "refuse"])
    @pytest.mark.parametrize("kind", sorted(FORMS))
    def test_form_of_the_answer_is_kept_or_refused(self, kind: str, mode: str) -> None:
        """An answer matches `response_format`, checked here; else the format is refused by name."""
        with self.subject() as subject:
            answer = _served(subject, _chat(response_format=_FORMS[kind]), kind, mode)
        if answer is None or answer.last.finish_reason == "length":
            return
        assert fault_of_text(answer.text, _FORMS[kind]) is None

    @pytest.mark.parametrize("mode", ["emulate", "refuse"])
    def test_several_answers_come_each_whole(self, mode: str) -> None:
        """`n` answers each have their index and finish reason, and the tokens are counted once; else `n` is refused."""
        with self.subject() as subject:
            answer = _served(subject, _chat(n=2), "n", mode)
            assert answer or mode == "refuse" or not subject.capabilities.gives_several
        if answer is not None:
            assert sorted(delta.index for delta in answer.deltas if delta.finish_reason) == [0, 1]
            assert [bool(delta.usage) for delta in answer.deltas if delta.finish_reason] == [False, True]

    def test_answer_goes_on_from_a_beginning(self) -> None:
        """A backend that says what becomes of an `assistant_prefix` answers with the rest, which may be nothing."""
        with self.subject() as subject:
            if subject.capabilities.assistant_prefix == "ignored":
                pytest.skip("it knows no beginnings of answers")
            _check_shape(_run(subject, lambda backend: collect(backend.chat(_chat(assistant_prefix="Once ")))))

    def test_embeddings_come_or_are_refused_by_name(self) -> None:
        """One vector a text, all of one length; else a sentence that says that it does not embed."""

        async def work(backend: Backend) -> None:
            result, refusal = None, ""
            try:
                result = await backend.embed(EmbedRequest(model="", input=["one", "two", "three"]))
            except RequestError as error:
                refusal = str(error)
            if result is None:
                assert "embed" in refusal
                return
            assert len(result.vectors) == 3
            assert len({len(vector) for vector in result.vectors}) == 1
            assert result.vectors[0]

        self._run(work)

    def test_private_text_is_in_no_log(self, caplog: pytest.LogCaptureFixture) -> None:
        """What a private request says stands in no log line, and in no error either."""
        with self.subject() as subject, caplog.at_level(logging.DEBUG):
            _run(subject, lambda backend: collect(backend.chat(_chat(_PRIVATE_TEXT, private=True))))
            with suppress(PyAgentError):
                _run(
                    subject,
                    lambda backend: collect(backend.chat(_chat(_PRIVATE_TEXT, private=True, timeout_seconds=1e-6))),
                )
        assert _PRIVATE_TEXT not in caplog.text

    def _run(self, work: Callable[[Backend], Awaitable[T]]) -> T:
        with self.subject() as subject:
            return _run(subject, work)


_REGEX = ResponseFormat("regex", regex="[0-9]{1,4}")
_FORMS = {
    "json_object": ResponseFormat("json_object"),
    "json_schema": ResponseFormat("json_schema", JsonSchemaFormat(name="weather", schema=_SCHEMA)),
    "choice": ResponseFormat("choice", choice=["yes", "no"]),
    "regex": _REGEX,
    "grammar": ResponseFormat("grammar", grammar=GrammarFormat('start: "<" start ">" | /[0-9]{1,4}/')),
    "structural_tag": ResponseFormat("structural_tag", structural_tag=Tag("<n>", RegexContent("[0-9]{1,4}"), "</n>")),
    "any_of": ResponseFormat("any_of", any_of=[_REGEX, ResponseFormat("choice", choice=["none"])]),
    "all_of": ResponseFormat("all_of", all_of=[_REGEX, ResponseFormat("regex", regex=".{3}")]),
}


def _chat(text: str = "hi", **fields: object) -> ChatRequest:
    fields.setdefault(
        "sampling", SamplingParams(max_tokens=64) if "response_format" not in fields else SamplingParams()
    )
    return ChatRequest(messages=[Message("user", text)], **fields)  # pyright: ignore[reportArgumentType]


def _sampled(**fields: object) -> ChatRequest:
    fields.setdefault("max_tokens", 16)
    return _chat(sampling=SamplingParams(**fields))  # pyright: ignore[reportArgumentType]


_IMAGE = [TextPart("what is it?"), ImagePart(ImageUrl(f"data:image/png;base64,{_PIXEL}"))]
_REQUESTS: dict[str, ChatRequest] = {
    "prompt": ChatRequest(prompt="Once upon", sampling=SamplingParams(max_tokens=8)),
    "prompt_token_ids": ChatRequest(prompt_token_ids=(5, 6, 7), sampling=SamplingParams(max_tokens=8)),
    "images": ChatRequest(messages=[Message("user", _IMAGE)]),
    "tool_choice": _chat(tools=[_TOOL], tool_choice="none"),
    "parallel_tool_calls": _chat(tools=[_TOOL], parallel_tool_calls=False),
    "reasoning_effort": _chat(reasoning_effort="low"),
    "chat_template_kwargs": _chat(chat_template_kwargs={"enable_thinking": False}),
    "chat_template": _chat(chat_template="{% for message in messages %}{{ message.content }}{% endfor %}"),
    "guided_decoding_backend": _chat(guided_decoding_backend="guidance"),
    "best_of": _chat(best_of=2),
    "beam": _chat(beam=BeamSearch(width=2)),
    "max_tokens": _sampled(max_tokens=5),
    "temperature": _sampled(temperature=0.0),
    "top_p": _sampled(top_p=0.5),
    "top_k": _sampled(top_k=5),
    "min_p": _sampled(min_p=0.1),
    "repetition_penalty": _sampled(repetition_penalty=1.1),
    "frequency_penalty": _sampled(frequency_penalty=0.1),
    "presence_penalty": _sampled(presence_penalty=0.1),
    "logit_bias": _sampled(logit_bias={5: -1.0}),
    "seed": _sampled(seed=7),
    "stop": _sampled(stop=("\n\n\n",)),
    "ignore_eos": _sampled(ignore_eos=True, max_tokens=4),
    "stop_token_ids": _sampled(stop_token_ids=(1,)),
    "min_tokens": _sampled(min_tokens=2, max_tokens=4),
    "skip_special_tokens": _sampled(skip_special_tokens=False),
    "include_stop_str_in_output": _sampled(stop=("\n",), include_stop_str_in_output=True),
    "return_token_ids": _sampled(return_token_ids=True, max_tokens=4),
    "return_tokens_as_token_ids": _sampled(return_tokens_as_token_ids=True, top_logprobs=1, max_tokens=4),
    "truncate_prompt_tokens": _chat(truncate_prompt_tokens=8),
    "add_special_tokens": ChatRequest(
        prompt="Once upon", add_special_tokens=False, sampling=SamplingParams(max_tokens=8)
    ),
    "top_logprobs": _sampled(top_logprobs=2, max_tokens=4),
    "flat_logprobs": _sampled(flat_logprobs=True, top_logprobs=2, max_tokens=4),
    "return_entropy": _sampled(return_entropy=True, top_logprobs=2, max_tokens=4),
    "prompt_logprobs": _sampled(prompt_logprobs=1, max_tokens=4),
    "top_activations": _sampled(top_activations=2, max_tokens=4),
    "logit_lens": _sampled(logit_lens=2, max_tokens=4),
    "echo": ChatRequest(prompt="Once upon", sampling=SamplingParams(echo=True, top_logprobs=1, max_tokens=4)),
    "typical_p": _sampled(typical_p=0.9),
    "epsilon_cutoff": _sampled(epsilon_cutoff=0.001),
    "eta_cutoff": _sampled(eta_cutoff=0.001),
    "top_n_sigma": _sampled(top_n_sigma=2.0),
    "top_h": _sampled(top_h=0.5),
    "xtc_probability": _sampled(xtc_probability=0.1),
    "xtc_threshold": _sampled(xtc_probability=0.1, xtc_threshold=0.2),
    "mirostat": _sampled(mirostat=2),
    "mirostat_tau": _sampled(mirostat=2, mirostat_tau=4.0),
    "mirostat_eta": _sampled(mirostat=2, mirostat_eta=0.2),
    "dynatemp_range": _sampled(dynatemp_range=0.2),
    "dynatemp_exponent": _sampled(dynatemp_range=0.2, dynatemp_exponent=2.0),
    "temperature_schedule": _sampled(temperature_schedule=TemperatureSchedule(end=0.5, tokens=8)),
    "top_k_entropy": _sampled(top_k_entropy=2.0),
    "min_p_entropy": _sampled(min_p=0.1, min_p_entropy=1.0),
    "penalty_schedule": _sampled(repetition_penalty=1.1, penalty_schedule=PenaltySchedule(warmup_tokens=8)),
    "repeat_last_n": _sampled(repetition_penalty=1.1, repeat_last_n=32),
    "penalty_decay": _sampled(repetition_penalty=1.1, penalty_decay=0.9),
    "no_repeat_ngram_size": _sampled(no_repeat_ngram_size=4),
    "dry_multiplier": _sampled(dry_multiplier=0.5),
    "dry_base": _sampled(dry_multiplier=0.5, dry_base=1.5),
    "dry_allowed_length": _sampled(dry_multiplier=0.5, dry_allowed_length=3),
    "dry_penalty_last_n": _sampled(dry_multiplier=0.5, dry_penalty_last_n=64),
    "dry_sequence_breakers": _sampled(dry_multiplier=0.5, dry_sequence_breakers=(".",)),
    "bad_words": _sampled(bad_words=("forbidden",)),
    "bad_words_penalty": _sampled(bad_words=("forbidden",), bad_words_penalty=5.0),
    "bad_words_decay_tokens": _sampled(bad_words=("forbidden",), bad_words_decay_tokens=4),
    "allowed_token_ids": _sampled(allowed_token_ids=tuple(range(100))),
    "thinking_token_budget": _sampled(thinking_token_budget=4),
}


def _check_shape(answer: Answer) -> None:
    assert all(delta.backend for delta in answer.deltas)
    assert [delta for delta in answer.deltas if delta.finish_reason] == [answer.last]
    assert [delta for delta in answer.deltas if delta.usage] == [answer.last]
    assert answer.last.model


def _served(subject: Subject, request: ChatRequest, field: str, mode: str) -> Answer | None:
    """The answer, or None when the field was refused rightly: it is one that the backend says it lacks."""
    request = msgspec.structs.replace(request, unsupported=cast("object", mode))
    abilities = subject.capabilities.abilities - subject.lacks
    refusal: BackendError | RequestError
    try:
        return _run(subject, lambda backend: collect(backend.chat(request)))
    except (BackendError, RequestError) as error:
        refusal = error
    assert field not in abilities, f"it says that it can do {field}, and: {refusal}"
    if mode == "emulate" and isinstance(refusal, InvalidOutputError):  # emulated, and the model would not
        return None
    lacked = needs(request) - abilities if field in SOFT else {field}  # a hint that is left out comes with others
    assert any(each.removesuffix("s") in str(refusal) for each in lacked), f"{field} is not named in: {refusal}"
    assert not isinstance(refusal, BackendError) or not refusal.retryable
    return None


def _run(subject: Subject, work: Callable[[Backend], Awaitable[T]]) -> T:
    async def main() -> T:
        backend = subject.make()
        try:
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(_bounded(main()))


async def _bounded(work: Awaitable[T]) -> T:
    async with asyncio.timeout(_LONGEST_SECONDS):
        return await work


async def _until(is_so: Callable[[], bool]) -> None:
    for _ in range(500):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the other side still works on an answer after its client left")
