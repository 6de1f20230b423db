"""What every runner must do, as a pytest class: a plugin's author derives from it, and names the factory and a model.

    class TestMine(RunnerConformance):
        factory = MyFactory()

        @pytest.fixture
        def model_path(self):
            return Path("small-model.gguf")

Nothing is assumed of what a model says, but that at temperature 0 it says the same of the same text, however the engine
computes it: alone or beside others, whole or in chunks, from nothing or from cached pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from pyagent.core.backends import collect
from pyagent.core.logits_processors import BroughtLogitsProcessor, RequestLogitsProcessor, Vocabulary
from pyagent.core.messages import ChatDelta, ChatRequest, JsonObject, SamplingParams
from pyagent.core.runners.factory import RunnerFactory, RunnerOptions
from pyagent.core.sampling_params import LogitsProcessorSpec
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.logits.processors import LogitsOptions
from pyagent.infrastructure.engine.models.loaded_model import LoadedModel
from pyagent.infrastructure.engine.options import EngineOptions, SchedulerLimits
from pyagent.infrastructure.engine.runners.choice import RunnerChoice

T = TypeVar("T")

_TEXTS = tuple(f"{word} of the river. " * 6 for word in ("North", "South", "North of the bend", "East"))
_LONGEST_SECONDS = 120.0
_ROUNDING_BYTES = 1 << 16


class RunnerConformance:
    """Derive from it; set `factory`, and define a fixture `model_path`: a model whose context is 512 tokens or more."""

    factory: ClassVar[RunnerFactory]

    def test_runner_is_available(self) -> None:
        """On the machine of the test, the runner can run."""
        assert self.factory.unavailable_reason() is None

    def test_estimate_is_what_the_model_takes(self, model_path: Path) -> None:
        """The estimate has the sizes of the loaded model, and the bytes of its weights but for their rounding."""
        options = self._options()
        needs = self.factory.estimate(model_path, options.runner, options.largest_step)

        async def work(backend: NativeBackend) -> LoadedModel:
            return cast("LoadedModel", await backend.load())

        runner = self._run(model_path, work).runner
        assert (needs.vocab_size, needs.context_length) == (runner.info.vocab_size, runner.info.context_length)
        assert (needs.page_bytes, needs.kv_groups) == (runner.info.page_bytes, runner.info.kv_groups)
        assert needs.weight_bytes >= 0.95 * runner.info.weight_bytes - _ROUNDING_BYTES

    def test_answers_are_the_same_however_computed(self, model_path: Path) -> None:
        """Alone, beside others, from cached pages and in chunks of 16 tokens, a text has the same greedy answer."""

        async def one_by_one(backend: NativeBackend) -> list[str]:
            return [(await collect(backend.chat(_asked(text)))).text for text in _TEXTS]

        async def at_once(backend: NativeBackend) -> list[str]:
            answers = await asyncio.gather(*(collect(backend.chat(_asked(text))) for text in _TEXTS))
            return [answer.text for answer in answers]

        async def twice(backend: NativeBackend) -> list[str]:
            await one_by_one(backend)
            return await at_once(backend)

        expected = self._run(model_path, one_by_one)
        assert any(expected)
        assert self._run(model_path, at_once) == expected
        assert self._run(model_path, twice) == expected
        assert self._run(model_path, at_once, max_num_batched_tokens=16) == expected

    def test_nothing_is_left_of_requests(self, model_path: Path) -> None:
        """When all have ended, or their callers have left, no sequence holds pages, and the pool's books are right."""

        async def work(backend: NativeBackend) -> None:
            stream = cast("AsyncGenerator[ChatDelta, None]", backend.chat(_asked(_TEXTS[0], max_tokens=400)))
            await anext(stream)
            await stream.aclose()
            await asyncio.gather(*(collect(backend.chat(_asked(text))) for text in _TEXTS))
            model = cast("LoadedModel", await backend.load())
            for _ in range(1000):
                if not model.runner.stats().active:
                    break
                await asyncio.sleep(0.01)
            assert not model.runner.stats().active
            model.runner.pool.check()

        self._run(model_path, work)

    def test_logits_processors_choose_what_is_sampled(self, model_path: Path) -> None:
        """What a plugin's processor writes is sampled, of its request alone; a runner that cannot do so says it."""

        async def work(backend: NativeBackend) -> None:
            plain = [_asked(text) for text in _TEXTS[:2]]
            chosen = _asked(_TEXTS[0], logits_processors=(LogitsProcessorSpec("repeat"),), top_logprobs=0)
            alone = [(await collect(backend.chat(request))).text for request in plain]
            if not cast("LoadedModel", await backend.load()).runner.processes_logits:
                return
            told, *others = await asyncio.gather(*(collect(backend.chat(request)) for request in [chosen, *plain]))
            assert len({one.token for delta in told.deltas for one in delta.logprobs}) == 1
            assert [answer.text for answer in others] == alone

        self._run(model_path, work)

    def test_close_is_safe_twice(self, model_path: Path) -> None:
        """A runner that is closed twice, used or not, is closed."""
        for _ in range(2):
            runner = self.factory.load(model_path, self._options().runner, self._options().largest_step, None)
            runner.close()
            runner.close()

    def _options(self, max_num_batched_tokens: int = 512) -> EngineOptions:
        return EngineOptions(
            RunnerOptions(threads=1, kv_bytes=64 << 20),
            SchedulerLimits(max_num_batched_tokens=max_num_batched_tokens),
            runners=RunnerChoice((self.factory,)),
            logits=LogitsOptions({"repeat": BroughtLogitsProcessor.of(_Repeat(), "conformance")}),
        )

    def _run(self, path: Path, work: Callable[[NativeBackend], Awaitable[T]], **limits: int) -> T:
        async def main() -> T:
            backend = NativeBackend.of("model", lambda: path, self._options(**limits))
            try:
                async with asyncio.timeout(_LONGEST_SECONDS):
                    return await work(backend)
            finally:
                await backend.close()

        return asyncio.run(main())


class _Repeat:
    """A logits processor that says the last token of the prompt again and again."""

    name = "repeat"
    is_argmax_invariant = False

    def __init__(self) -> None:
        self.arguments: JsonObject = {}

    def make(self, args: JsonObject, vocabulary: Vocabulary) -> RequestLogitsProcessor:
        def repeat(prompt: Sequence[int], output: Sequence[int], logits: memoryview[float]) -> None:
            logits[prompt[-1]] = 1e4

        return repeat


def _asked(text: str, max_tokens: int = 24, **more: Any) -> ChatRequest:  # Any: further fields of sampling
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **more)
    return ChatRequest(prompt=text, sampling=sampling)
