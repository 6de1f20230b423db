"""The suites of what an engine is made of notice what each rule is for: a table of faults, one and more for a rule."""

from __future__ import annotations

import asyncio
import math
import random
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from support.suites import check_rule_is_kept, rules_of

from pyagent.core.dialects.dialect import TagDialect
from pyagent.core.dialects.named_calls import NamedCalls
from pyagent.core.dialects.output import Parsed
from pyagent.core.dialects.text import Reasoning
from pyagent.core.grammars import GrammarSource
from pyagent.core.runners.architecture import FamilyDescription
from pyagent.core.runners.kv_connector import KvLayers, KvMatch
from pyagent.infrastructure.engine.grammar.guidance import GUIDANCE
from pyagent.infrastructure.engine.scheduler.policies import BUILT_IN
from pyagent.testing import (
    ArchitectureConformance,
    AttentionBackendConformance,
    DialectConformance,
    EvictionPolicyConformance,
    GrammarBackendConformance,
    KvConnectorConformance,
    LogitsProcessorConformance,
    QueuedRequest,
    QueuePolicyConformance,
    TokenizerConformance,
)
from pyagent.testing.suites import dialects, policies, tokenizers

Fault = tuple[type, str, Callable[..., object], str]
EXAMPLES = Path(__file__).parents[2] / "examples"


# -- orders ----------------------------------------------------------------------------------------------------------


class Fifo:
    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        BUILT_IN["fcfs"](options or {})
        self.waiting: list[Any] = []

    def add(self, request: Any, now: float) -> None:
        self.waiting.append(request)

    def remove(self, request: Any) -> None:
        self.waiting.remove(request)

    def ordered(self, now: float) -> Iterator[Any]:
        return iter([*self.waiting])

    def served(self, *told: Any) -> None: ...

    def finished(self, request: Any, now: float) -> None: ...

    def victim(self, running: Any, now: float) -> Any:
        return running[-1]

    def victim_for(self, waiting: Any, running: Any, now: float) -> Any:
        return running[-1]  # added behind all that wait


class LeavesOut(Fifo):
    def ordered(self, now: float) -> Iterator[Any]:
        return iter(self.waiting[:3])


class Turning(Fifo):
    def ordered(self, now: float) -> Iterator[Any]:
        self.waiting.append(self.waiting.pop(0)) if self.waiting else None
        return iter([*self.waiting])


class Inventing(Fifo):
    def victim(self, running: Any, now: float) -> Any:
        return QueuedRequest(99)


class TakingTurns(Fifo):
    def add(self, request: Any, now: float) -> None:
        self.waiting.insert(0, request)


class Careless(Fifo):
    def __init__(self, options: Mapping[str, object]) -> None:
        super().__init__()


class Slow(Fifo):
    def ordered(self, now: float) -> Iterator[Any]:
        time.sleep(0.006)
        return iter(self.waiting)


class Lru:
    def __init__(self, num_blocks: int = 0) -> None:
        self.released: list[int] = []
        self.num_evicted = 0

    def insert(self, block: int, key: int, priority: int) -> None: ...

    def hit(self, block: int) -> None: ...

    def release(self, block: int) -> None:
        self.released.append(block)

    def hold(self, block: int) -> None:
        self.released.remove(block)

    def evict(self) -> int | None:
        self.num_evicted += 1
        return self.released.pop(0) if self.released else None

    def forget(self, block: int) -> None:
        if block in self.released:
            self.released.remove(block)


class Holding(Lru):
    def hold(self, block: int) -> None: ...


class Losing(Lru):
    def release(self, block: int) -> None:
        if block != 7:
            super().release(block)


class Never(Lru):
    def evict(self) -> int | None:
        return super().evict() or 0


class Remembering(Lru):
    def forget(self, block: int) -> None: ...


class Tired(Lru):
    def evict(self) -> int | None:
        found = super().evict()
        return None if self.num_evicted > 2000 else found


# -- dialects --------------------------------------------------------------------------------------------------------


class Wrapped:
    """A right dialect, of which a fault changes a part."""

    def __init__(self) -> None:
        self.inner = TagDialect(
            name="good",
            models="none",
            clues=("@call", "@end"),
            reasoning=Reasoning("@think", "@answer"),
            calls=NamedCalls("@call", ("@end",), (" {name} ",), separator="\n"),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class WrappedParser:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def push(self, text: str) -> Any:
        return self.inner.push(text)

    def finish(self, *, is_cut: bool = False) -> Any:
        return self.inner.finish(is_cut=is_cut)

    def copy(self) -> Any:
        return type(self)(self.inner.copy())


def parsing(kind: type[WrappedParser]) -> Callable[[], object]:
    class Dialect(Wrapped):
        def parser(self, *told: Any, **options: Any) -> Any:
            return kind(self.inner.parser(*told, **options))

    return Dialect


class Jealous(Wrapped):
    def matches(self, template: str) -> bool:
        return True


class Deaf(WrappedParser):
    def push(self, text: str) -> Any:
        return Parsed(content=self.inner.push(text).content)


class LosesLetters(WrappedParser):
    def push(self, text: str) -> Any:
        return Parsed() if text == "e" else self.inner.push(text)


class OneOnly(WrappedParser):
    def copy(self) -> Any:
        return self


class Unfinished(WrappedParser):
    def finish(self, *, is_cut: bool = False) -> Any:
        return Parsed()


class FragileParser(WrappedParser):
    def push(self, text: str) -> Any:
        assert "\x00" not in text, "a zero"
        return self.inner.push(text)


class Whispering(WrappedParser):
    def push(self, text: str) -> Any:
        return self.inner.push(text.lower())


class Calling(Wrapped):
    def parser(self, tools: Any, **options: Any) -> Any:
        from pyagent.testing.suites.dialects import LOOK_UP

        return self.inner.parser([LOOK_UP], **options)


class Lazy(WrappedParser):
    num_letters = 0

    def push(self, text: str) -> Any:
        self.num_letters += 1
        if self.num_letters == 15_000:
            time.sleep(0.3)
        return self.inner.push(text)


class NoLark(Wrapped):
    def grammar(self, *told: Any, **options: Any) -> str:
        return "start: ("


class OtherGrammar(Wrapped):
    def grammar(self, *told: Any, **options: Any) -> str:
        return 'start: "hello"'


# -- tokenizers ------------------------------------------------------------------------------------------------------


class Bytes:
    num_tokens = 257
    special_tokens: Mapping[str, int] = {"<|end|>": 256}
    begin_id = None
    end_ids = (256,)
    has_leading_space = False

    def encode(self, text: str) -> list[int]:
        before, name, after = text.partition("<|end|>")
        return [*before.encode(), 256, *self.encode(after)] if name else list(before.encode())

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""


def tokenizer(kind: type[Bytes] = Bytes) -> Any:
    class Factory:
        name = "good"

        def matches(self, path: Path) -> bool:
            return path.name == Path(__file__).name

        def load(self, path: Path) -> Bytes:
            return kind()

    return Factory()


def tokenizer_of_everything() -> Any:
    factory = tokenizer()
    type(factory).matches = lambda self, path: True
    return factory


def tokenizer_that_trusts() -> Any:
    factory = tokenizer()

    def load(self: object, path: Path) -> Bytes:
        return {b'"""': Bytes}[path.read_bytes()[:3] * (b"engine_faults" in path.read_bytes()[-400:])]()

    type(factory).load = load
    return factory


class Nameless(Bytes):
    num_tokens = 10


class Loud(Bytes):
    def token_bytes(self, token: int) -> bytes:
        return super().token_bytes(token).upper()


class Ending(Bytes):
    def encode(self, text: str) -> list[int]:
        return [*super().encode(text), 256]


class Plain(Bytes):
    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class Threadless(Bytes):
    def encode(self, text: str) -> list[int]:
        self.text = text
        time.sleep(0.001)
        return super().encode(self.text)


class SlowBytes(Bytes):
    def encode(self, text: str) -> list[int]:
        time.sleep(0.3 if len(text) > 100_000 else 0)
        return super().encode(text)


# -- grammars --------------------------------------------------------------------------------------------------------


class Matcher:
    def __init__(self, inner: Any, changes: Mapping[str, Any]) -> None:
        self.inner, self.changes = inner, changes

    @property
    def is_finished(self) -> bool:
        return self.changes.get("is_finished", self.inner.is_finished)

    def accept(self, token: int) -> None:
        try:
            self.inner.accept(token)
        except Exception:
            if "accepts" not in self.changes:
                raise

    def copy(self) -> Any:
        return self if "is_shared" in self.changes else Matcher(self.inner.copy(), self.changes)


def grammars(**changes: Any) -> Callable[[], object]:
    """A backend like guidance's, with faults."""

    class Backend:
        def __init__(self, inner: Any) -> None:
            self.inner, self.last = inner, None

        def compile(self, source: Any) -> Any:
            source = changes.get(source.kind, source)
            if "is_mixing" in changes:
                self.last = source
                time.sleep(0.005)
                source = self.last
            if "takes_all" in changes and source.text.startswith(("(", '{"type": "nothing')):
                source = GrammarSource("regex", "a")
            return Matcher(self.inner.compile(source), changes)

        def fill_masks(self, rows: Any, masks: memoryview) -> None:
            row_of = (lambda row: 0) if "one_row" in changes else (lambda row: row)
            self.inner.fill_masks([(matcher.inner, row_of(row)) for matcher, row in rows], masks)

    class Factory:
        name = "good"

        def unavailable_reason(self) -> str | None:
            return changes.get("reason")

        def open(self, vocabulary: Any) -> Any:
            return Backend(GUIDANCE.open(vocabulary))

    return Factory


# -- logits processors -----------------------------------------------------------------------------------------------


class Bias:
    name = "good"
    arguments: Mapping[str, Any] = {"properties": {"by": {"type": "number"}}, "required": ["by"]}
    is_argmax_invariant = False

    def make(self, args: Any, vocabulary: Any) -> Any:
        def add(prompt: Any, output: Any, logits: Any) -> None:
            logits[65] += args["by"] + len(output)

        return add


class Invariant(Bias):
    is_argmax_invariant = True

    def make(self, args: Any, vocabulary: Any) -> Any:
        return None


class Undescribed(Bias):
    arguments: Mapping[str, Any] = {"properties": {"by": {"type": "string"}}}


class Loose(Bias):
    arguments: Mapping[str, Any] = {"properties": {"by": {"type": ["number", "object"]}}}


def biased(change: Callable[[Any, Any], None], *, is_invariant: bool = False) -> Callable[[], object]:
    class Changed(Bias):
        is_argmax_invariant = is_invariant

        def make(self, args: Any, vocabulary: Any) -> Any:
            return lambda prompt, output, logits: change(output, logits)

    return Changed


def randomly(output: Any, logits: Any) -> None:
    logits[0] = random.random()


def nothing_left(output: Any, logits: Any) -> None:
    for token in range(len(logits)):
        logits[token] = -math.inf


def not_a_number(output: Any, logits: Any) -> None:
    logits[0] = math.nan


def most(output: Any, logits: Any) -> None:
    logits[0] = 1e4


def written(output: Any, logits: Any) -> None:
    output.append(1)


class Unmoved:
    """A batch processor that does not follow its rows."""

    name, is_argmax_invariant = "good", False
    arguments = Bias.arguments

    def make_batch(self, vocabulary: Any) -> Any:
        return self

    def update_state(self, update: Any) -> None:
        self.rows = getattr(self, "rows", None) or {added.row: added for added in update.added}

    def apply(self, logits: Any) -> None:
        for row in range(logits.shape[0]):
            logits[row, 65] += len(self.rows[row].output_token_ids)


# -- KV connectors ---------------------------------------------------------------------------------------------------


class Store:
    """Keeps KV in a dict, as several engines of one process would."""

    patience: object = 0.1

    def __init__(self, kept: dict[object, Any]) -> None:
        self.kept, self.num_loads, self.num_closes = kept, 0, 0

    def register(self, model: str, cache: Any) -> None:
        self.cache = cache

    def forget(self, model: str) -> None: ...

    def key(self, prompt: Any, num_tokens: int) -> object:
        return self.cache.layout, prompt.key, tuple(prompt.tokens[:num_tokens])

    async def matched_tokens(self, prompt: Any) -> Any:
        for num_tokens in range(len(prompt.tokens), prompt.num_local, -16):
            if (held := self.kept.get(self.key(prompt, num_tokens))) is not None:
                return KvMatch(num_tokens, 0.0, None, held)
        return None

    async def load(self, prompt: Any, match: Any, pages: Any) -> Any:
        self.num_loads += 1
        for layer in range(3):
            yield KvLayers(layer, 1, self.bytes_of(match.source.read(pages.wanted, layer, 1)))

    def bytes_of(self, data: bytes) -> bytes:
        return data

    def save(self, prompt: Any) -> None:
        held = self.cache.hold(prompt.tokens, prompt.key)
        if held.num_tokens == len(prompt.tokens):
            self.kept[self.key(prompt, len(prompt.tokens))] = held

    async def close(self) -> None:
        self.num_closes += 1


def connector(kind: type[Store] = Store) -> Any:
    kept: dict[object, Any] = {}

    class Factory:
        name = "good"

        def open(self) -> Store:
            return kind(kept)

    return Factory()


class Impatient(Store):
    patience = "long"


class Corrupt(Store):
    def bytes_of(self, data: bytes) -> bytes:
        return b"\0" + data[1:]


class Broken(Store):
    async def matched_tokens(self, prompt: Any) -> Any:
        match = await Store.matched_tokens(self, prompt)
        return match and KvMatch(40, 0.0, None, match.source)


class Hopeful(Store):
    async def matched_tokens(self, prompt: Any) -> Any:
        match = await Store.matched_tokens(self, prompt)
        return match and KvMatch(len(prompt.tokens), 0.0, None, match.source)


class Sharing(Store):
    def key(self, prompt: Any, num_tokens: int) -> object:
        return self.cache.layout, tuple(prompt.tokens[:num_tokens])


class Unlooking(Store):
    def save(self, prompt: Any) -> None:
        self.kept[self.key(prompt, len(prompt.tokens))] = self.cache.hold(prompt.tokens, prompt.key)


class LoadsOnce(Store):
    async def load(self, prompt: Any, match: Any, pages: Any) -> Any:
        assert not self.num_loads, "it loads once"
        async for piece in Store.load(self, prompt, match, pages):
            yield piece


class StoreClosedOnce(Store):
    async def close(self) -> None:
        await asyncio.sleep(0)
        assert not self.num_closes, "it closes once"
        await super().close()


# -- architectures and attention, as far as they go without torch ----------------------------------------------------

Granite = runpy.run_path(str(EXAMPLES / "pyagent-granite/pyagent_granite.py"))["Granite"]
sinks = runpy.run_path(str(EXAMPLES / "pyagent-sinks/pyagent_sinks.py"))["pyagent_register_attention_backends"]
CONFIG = {
    "model_type": "granite",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "attention_multiplier": 0.1,
    "rope_theta": 100.0,
}


LAYER = {
    "input_layernorm": (64,),
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (32, 64),
    "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64),
    "post_attention_layernorm": (64,),
    "mlp.gate_proj": (96, 64),
    "mlp.up_proj": (96, 64),
    "mlp.down_proj": (64, 96),
}
TENSORS = {
    "model.embed_tokens.weight": (320, 64),
    "model.norm.weight": (64,),
    **{f"model.layers.{layer}.{name}.weight": shape for layer in range(2) for name, shape in LAYER.items()},
}


class Described(Granite):  # type: ignore[misc, valid-type]
    more: ClassVar = {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "logits_scaling": 2.0,
        "hidden_act": "silu",
    }

    def describe(self, config: Any) -> FamilyDescription:
        return FamilyDescription(config={**config, **self.more})


class WithoutNorm(Described):
    def describe(self, config: Any) -> FamilyDescription:
        return FamilyDescription(config=super().describe(config).config, tensor_names={"model.norm": "norm"})


class Misnamed(Granite):  # type: ignore[misc, valid-type]
    name = "granit"


class Uneven(Granite):  # type: ignore[misc, valid-type]
    def shape(self, config: Any) -> Any:
        return super().shape({**config, "num_key_value_heads": 3})


class ImportsTorch(Granite):  # type: ignore[misc, valid-type]
    def shape(self, config: Any) -> Any:
        sys.modules["torch"] = ModuleType("torch")
        return super().shape(config)


class Guessing(Granite):  # type: ignore[misc, valid-type]
    def shape(self, config: Any) -> Any:
        return super().shape({**config, "num_hidden_layers": config.get("num_hidden_layers") + 0})


class Unopened:
    name = "unopened"

    def unavailable_reason(self, shape: Any) -> str | None: ...


INPUTS: dict[type, dict[str, Any]] = {
    DialectConformance: {
        "answers": ('@think hm @answer Yes. @call look_up {"city": "Rome"}@end',),
    },
    TokenizerConformance: {"model": lambda self: Path(__file__)},
    LogitsProcessorConformance: {"args": ({"by": 2.0}, {"by": -1})},
    ArchitectureConformance: {"config": CONFIG, "tensors": TENSORS},
}
GOOD: dict[type, Callable[..., object]] = {
    QueuePolicyConformance: Fifo,
    EvictionPolicyConformance: Lru,
    DialectConformance: Wrapped,
    TokenizerConformance: tokenizer,
    GrammarBackendConformance: grammars(),
    LogitsProcessorConformance: Bias,
    KvConnectorConformance: connector,
    ArchitectureConformance: Described,
    AttentionBackendConformance: lambda: sinks()[0],
}
NEED_TORCH = {
    "test_each_layer_attends_once_in_order",
    "test_outputs_have_the_shapes_sizes",
    "test_a_token_does_not_see_later_ones",
    "test_description_and_network_agree",
    "test_it_says_what_it_cannot_do",
    "test_it_computes_the_formula",
    "test_invariant_form_does_not_vary",
}
"""tests/oracle/test_torch_conformance.py has their faults."""
REGEX = GrammarSource("regex", "[a-d]{2,4}-[0-9]+")
YES = GrammarSource("choice", '["yes"]')
FAULTS: list[Fault] = [
    (QueuePolicyConformance, "each_waiting_request_is_offered_once", LeavesOut, "it offers"),
    (QueuePolicyConformance, "looking_changes_nothing", Turning, "asked again"),
    (QueuePolicyConformance, "victim_is_one_that_runs", Inventing, "none of those that run"),
    (QueuePolicyConformance, "preempting_ends", TakingTurns, "before what it gave way to"),
    (QueuePolicyConformance, "unknown_option_is_refused_by_name", Careless, "DID NOT RAISE"),
    (QueuePolicyConformance, "many_requests_are_ordered_quickly", Slow, "more than a millisecond"),
    (EvictionPolicyConformance, "only_released_blocks_go", Holding, "it gives up"),
    (EvictionPolicyConformance, "every_released_block_goes_in_the_end", Losing, "are released, it gives up"),
    (EvictionPolicyConformance, "empty_policy_has_nothing", Never, "has none"),
    (EvictionPolicyConformance, "forgotten_block_is_gone", Remembering, "was to forget"),
    (EvictionPolicyConformance, "blocks_at_most_are_kept", Tired, "gives up nothing"),
    (DialectConformance, "host_takes_the_dialect", Jealous, "any chat template"),
    (DialectConformance, "calls_are_read", parsing(Deaf), "no call is read"),
    (DialectConformance, "any_split_reads_the_same", parsing(LosesLetters), "letter by letter"),
    (DialectConformance, "copy_goes_on_by_itself", parsing(OneOnly), "a copy after"),
    (DialectConformance, "answers_may_end_anywhere", parsing(Unfinished), "the arguments of look_up are"),
    (DialectConformance, "any_text_is_read", parsing(FragileParser), "a zero"),
    (DialectConformance, "text_without_tags_is_content", parsing(Whispering), "plain text is changed"),
    (DialectConformance, "without_tools_nothing_is_called", Calling, "without tools"),
    (DialectConformance, "long_text_takes_linear_time", parsing(Lazy), "linear time"),
    (DialectConformance, "grammar_compiles", NoLark, "does not compile"),
    (DialectConformance, "grammar_lets_a_call_through_that_is_read", OtherGrammar, "no call is read"),
    (TokenizerConformance, "host_takes_the_factory", object, "instances with a `name`"),
    (TokenizerConformance, "it_knows_its_own_models_alone", tokenizer_of_everything, "model of its own"),
    (TokenizerConformance, "values_are_what_they_should_be", lambda: tokenizer(Nameless), "num_tokens=10"),
    (TokenizerConformance, "texts_come_back", lambda: tokenizer(Loud), "comes back as"),
    (TokenizerConformance, "nothing_is_added", lambda: tokenizer(Ending), "empty text"),
    (TokenizerConformance, "names_of_control_tokens_are_these", lambda: tokenizer(Plain), "is not token 256"),
    (TokenizerConformance, "same_text_gives_the_same_tokens_in_threads", lambda: tokenizer(Threadless), "in threads"),
    (TokenizerConformance, "long_text_takes_linear_time", lambda: tokenizer(SlowBytes), "linear time"),
    (TokenizerConformance, "damaged_files_are_told", tokenizer_that_trusts, "not a ModelError, but KeyError"),
    (GrammarBackendConformance, "host_takes_the_backend", grammars(reason="no compiler"), "no compiler"),
    (GrammarBackendConformance, "what_it_lets_through_matches", grammars(regex=REGEX), "it lets"),
    (GrammarBackendConformance, "every_right_text_is_let_through", grammars(choice=YES), "is not let through"),
    (GrammarBackendConformance, "token_that_is_not_allowed_is_refused", grammars(accepts=True), "token 0"),
    (GrammarBackendConformance, "end_finishes", grammars(is_finished=False), "not finished by its end"),
    (GrammarBackendConformance, "copies_do_not_move_each_other", grammars(is_shared=True), "moves what it was copied"),
    (GrammarBackendConformance, "rows_of_a_step_are_each_their_own", grammars(one_row=True), "its matcher's mask"),
    (GrammarBackendConformance, "threads_compile_at_once", grammars(is_mixing=True), "grammars mix"),
    (GrammarBackendConformance, "broken_grammar_is_refused", grammars(takes_all=True), "DID NOT RAISE"),
    (LogitsProcessorConformance, "host_takes_the_processor", Undescribed, "cannot take these args"),
    (LogitsProcessorConformance, "wrong_arguments_are_refused", Loose, "DID NOT RAISE"),
    (LogitsProcessorConformance, "same_tokens_give_the_same_logits", biased(randomly), "something else"),
    (LogitsProcessorConformance, "rows_do_not_mix", Unmoved, "moved to another row"),
    (LogitsProcessorConformance, "something_can_be_sampled", biased(nothing_left), "excludes every token"),
    (LogitsProcessorConformance, "something_can_be_sampled", biased(not_a_number), "NaN"),
    (LogitsProcessorConformance, "argmax_stays_where_it_says_so", biased(most, is_invariant=True), "likeliest"),
    (LogitsProcessorConformance, "tokens_are_left_as_they_are", biased(written), "changes what it is given"),
    (KvConnectorConformance, "host_takes_the_connector", lambda: connector(Impatient), "`patience` is 'long'"),
    (KvConnectorConformance, "saved_kv_is_found_and_loaded", lambda: connector(Corrupt), "other bytes"),
    (KvConnectorConformance, "match_is_of_whole_blocks_beyond_what_is_here", lambda: connector(Broken), "40 tokens"),
    (KvConnectorConformance, "longer_prompt_finds_what_it_begins_with", lambda: connector(Hopeful), "it matches 128"),
    (KvConnectorConformance, "other_prompts_find_nothing", lambda: connector(Sharing), "another tenant"),
    (KvConnectorConformance, "kv_that_is_gone_is_not_offered", lambda: connector(Unlooking), "was not there"),
    (KvConnectorConformance, "load_may_be_left", lambda: connector(LoadsOnce), "it loads once"),
    (KvConnectorConformance, "close_is_safe_twice_and_while_saving", lambda: connector(StoreClosedOnce), "closes once"),
    (ArchitectureConformance, "host_takes_the_architecture", Misnamed, "its name is 'granit'"),
    (ArchitectureConformance, "shape_is_of_a_model", Uneven, "4 heads, 3 KV heads"),
    (ArchitectureConformance, "shape_needs_no_torch", ImportsTorch, "imports torch"),
    (ArchitectureConformance, "missing_field_is_the_models_fault", Guessing, "TypeError"),
    (ArchitectureConformance, "described_folder_answers", WithoutNorm, "the CPU runner does not take it"),
    (AttentionBackendConformance, "host_takes_the_backend", Unopened, "with `open`"),
]
RULES = [(suite, rule) for suite in GOOD for rule in rules_of(suite) if rule not in NEED_TORCH]


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def name_of(part: object) -> str:
    return getattr(part, "__name__", None) or str(part)[:40]


@pytest.mark.parametrize(("suite", "rule", "make", "told"), FAULTS, ids=name_of)
def test_fault_is_noticed(
    suite: type, rule: str, make: Callable[..., object], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule fails with what is wrong, where it passes without the fault. What takes seconds takes less here."""
    for module, name in ((policies, "_MANY_SECONDS"), (dialects, "_LONG_SECONDS"), (tokenizers, "_LONG_SECONDS")):
        monkeypatch.setattr(module, name, 0.15)
    with pytest.raises((Exception, pytest.fail.Exception)) as noticed:
        check_rule_is_kept(suite, f"test_{rule}", make, INPUTS.get(suite, {}))
    assert not isinstance(noticed.value, RuntimeError), noticed.value
    assert told in str(noticed.value)


@pytest.mark.parametrize(("suite", "rule"), RULES, ids=name_of)
def test_rule_is_kept_without_a_fault(suite: type, rule: str) -> None:
    """What has no fault passes each rule, and each rule has a fault that it is for."""
    good = Invariant if rule == "test_argmax_stays_where_it_says_so" else GOOD[suite]
    check_rule_is_kept(suite, rule, good, INPUTS.get(suite, {}))
    assert any((suite, rule) == (each, f"test_{fault}") for each, fault, _, _ in FAULTS), "no fault for this rule"
