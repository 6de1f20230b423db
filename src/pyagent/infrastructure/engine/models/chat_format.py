"""How one model is told of tools and of thinking, and how its answers are read: by its chat template and its dialect.

A model whose template knows tools gets them from it, and writes calls in its own dialect. Any other is told of them in
words, and a grammar holds each call that it begins to the tool's schema. Knows a tokenizer; no engine, no KV memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import msgspec

from pyagent.core.abilities import needs
from pyagent.core.dialects.dialect import Dialect
from pyagent.core.dialects.formats import HERMES
from pyagent.core.dialects.json_calls import JsonCalls
from pyagent.core.dialects.registry import dialect_for, dialects
from pyagent.core.emulation import dialect as in_words
from pyagent.core.errors import UnsupportedError
from pyagent.core.messages import ChatRequest, FunctionDefinition, JsonObject, Message, SamplingParams, Tool
from pyagent.core.structured_output.sources import has_answer
from pyagent.core.structured_output.tags import names_in, structural_tags
from pyagent.infrastructure.engine.models.tool_results import in_call_order
from pyagent.infrastructure.engine.options import ThinkingLimits
from pyagent.infrastructure.engine.sampling.sampler import make_sampler
from pyagent.infrastructure.engine.thinking_budget import ThinkingBudget

if TYPE_CHECKING:
    from pyagent.core.dialects.dialect import OutputParser
    from pyagent.infrastructure.engine.tokens import ModelTokenizer
    from pyagent.infrastructure.engine.tokens.templates import ChatTemplate

WORDS = replace(HERMES, name="words", calls=JsonCalls(in_words.OPEN, (in_words.CLOSE,)), ends_with_calls=True)
"""As `core.emulation.dialect` tells a model to write calls, and nothing after them, where a base model goes on."""
_TAG = re.compile(r"</?([A-Za-z_|]{1,40})>|\[/?([A-Z_]{1,40})\]")
_OF_TOOLS = frozenset({"tools", "tool_choice", "parallel_tool_calls", "strict"})
_IN_BRACKETS = re.compile(r"<.*>")
"""Added tokens that llguidance takes for control tokens, whatever the tokenizer says."""
_PROBE = Tool(FunctionDefinition("probe"))
_NUM_LAST_TOKENS = 24
_BUDGET_VARIABLE = "thinking_budget"
"""Of Seed OSS' chat template, and of Qwen's servers."""
_EFFORTS = {"minimal": "low", "xhigh": "high", "max": "high"}


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """What one request's prompt says of tools and thinking, and how its answer is written.

    `tools` are those the template is given, `callable_tools` those that may be called. `thinks` says whether the
    answer may begin with reasoning, of `thinking_budget` tokens at most.
    """

    request: ChatRequest
    dialect: Dialect | None
    messages: Sequence[Message]
    tools: Sequence[Tool]
    callable_tools: Sequence[Tool]
    template_kwargs: Mapping[str, object]
    is_in_words: bool
    thinks: bool
    thinking_budget: int | None = None

    @property
    def must_call(self) -> bool:
        """Whether the answer has to be a call."""
        return bool(self.callable_tools) and self.request.tool_choice not in (None, "auto")

    @property
    def needs_grammar(self) -> bool:
        """Whether the sampled tokens are held to the form of calls."""
        is_held = self.is_in_words or self.has_strict or not self.request.parallel_tool_calls or self.is_structured
        return bool(self.callable_tools) and (self.must_call or is_held)

    @property
    def is_structured(self) -> bool:
        """Whether text must match a response format."""
        wanted = self.request.response_format
        return wanted is not None and wanted.type != "text"

    @property
    def has_strict(self) -> bool:
        """Whether the arguments of a call must follow their schema."""
        return any(tool.function.strict for tool in self.callable_tools)

    def parser(self, *, is_reasoning: bool, is_held: bool) -> OutputParser | None:
        """Return a parser for the answer; None where all of it is content."""
        if self.dialect is None:
            return None
        return self.dialect.parser(self.callable_tools, is_reasoning=is_reasoning, is_held=is_held)

    def grammar(self, token_ids: Mapping[str, int], *, is_loose: bool = False) -> str:
        """Return the grammar of the calls; with `is_loose`, any object will do as arguments.

        A form that text must match is the other choice: within a grammar that holds the whole answer, in the place of
        its text.
        """
        assert self.dialect is not None  # there are tools
        tools = [_without_schema(tool) for tool in self.callable_tools] if is_loose else self.callable_tools
        is_named = isinstance(self.request.tool_choice, dict)  # OpenAI: "exactly one specific function"
        write = partial(
            self.dialect.grammar,
            tools,
            is_parallel=self.request.parallel_tool_calls and not is_named,
            token_ids=token_ids,
        )
        if self.must_call or not self.is_structured:
            return write(is_required=self.must_call)
        whole = write(is_required=False) if self.dialect.spans_reasoning else ""
        return whole if has_answer(whole) else write(is_required=True)

    def as_rendered(self, message: Message) -> Message:
        """Return an answer as later prompts of its conversation will have it."""
        return in_words.told_message(message, {}) if self.is_in_words else message


class ChatFormat:
    """How one model's chats are written: `dialect` is what its template shows, or what the settings name."""

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        dialect: Dialect | None,
        limits: ThinkingLimits | None = None,
        *,
        is_sure: bool = True,
    ) -> None:
        """Without a dialect, answers are told as they are written. Where it is not sure, tools are told in words."""
        self._tokenizer = tokenizer
        self._limits = limits or ThinkingLimits()
        self.dialect = dialect
        template = tokenizer.template
        self._tag_ids: dict[str, dict[str, int]] = {}
        self.knows_tools = _knows_tools(dialect, template, is_sure=is_sure)

    @classmethod
    def of_model(
        cls,
        tokenizer: ModelTokenizer,
        name: str,
        brought: Sequence[Dialect] = (),
        limits: ThinkingLimits | None = None,
    ) -> ChatFormat:
        """Return the format by the dialect of this name, by none, or by what the chat template shows (`auto`)."""
        dialect, is_sure = _dialect_of(name, tokenizer.template, brought)
        return cls(tokenizer, dialect, limits, is_sure=is_sure)

    def of(self, request: ChatRequest) -> AnswerFormat:
        """Return the format of a request's answer. Raises `UnsupportedError` for what it cannot be told."""
        request = msgspec.structs.replace(request, messages=in_call_order(request.messages))
        messages, kwargs = request.messages, self._template_kwargs(request)
        if not messages:
            return AnswerFormat(request, None, messages, (), (), kwargs, is_in_words=False, thinks=False)
        tools = () if request.tool_choice == "none" else tuple(request.tools)
        called = tuple(_chosen(tools, request.tool_choice))
        is_past = any(message.tool_calls or message.role == "tool" for message in messages)
        is_in_words = bool(tools or is_past) and not self.knows_tools
        if is_in_words and request.unsupported == "refuse":
            raise _unsupported(
                request, _OF_TOOLS, "its chat template has no tools, and they are not to be told in words"
            )
        if is_in_words:
            told = in_words.told_plainly(request).messages
            messages = _instructed(told, tools, request) if tools else told
        thinks = bool(self.reasoning_tags) and not _is_switched_off(kwargs)
        dialect = WORDS if is_in_words and tools else self.dialect if tools or self.reasoning_tags else None
        rendered = () if is_in_words else tools
        budget = self._budget(request) if self.reasoning_tags else None
        return AnswerFormat(
            request, dialect, messages, rendered, called, kwargs, is_in_words, thinks=thinks, thinking_budget=budget
        )

    @property
    def takes_effort(self) -> bool:
        """Whether the model can be told how much to think."""
        template = self._tokenizer.template
        return bool(template and template.switches) or bool(self._limits.by_effort and self.reasoning_tags)

    def _budget(self, request: ChatRequest) -> int | None:
        """Return the most tokens of reasoning: as the request says, else the settings; None for no bound."""
        said, effort = request.sampling.thinking_token_budget, request.reasoning_effort or ""
        if said is None:
            named = request.chat_template_kwargs.get(_BUDGET_VARIABLE)
            said = named if isinstance(named, int) and not isinstance(named, bool) else None
        if said is None:
            said = self._limits.by_effort.get(effort, self._limits.num_tokens)
        return None if said is None or said < 0 else said

    def thinking_budget(self, asked: AnswerFormat, sampled: SamplingParams) -> ThinkingBudget | None:
        """Return the bound of an answer's reasoning; of the tokens that end it, as much is told as of the others."""
        if asked.thinking_budget is None or asked.dialect is None or asked.dialect.reasoning is None:
            return None
        ending = asked.dialect.reasoning.ending(has_tools=bool(asked.callable_tools))
        tokens = self._tokenizer.encode_continuation(self._limits.message + ending)
        told = SamplingParams(temperature=0, top_logprobs=sampled.top_logprobs, return_entropy=sampled.return_entropy)
        sampler = make_sampler(told, self._tokenizer)
        return ThinkingBudget(asked.thinking_budget, tuple(tokens), sampler, asked.dialect.spans_reasoning)

    def is_open(self, tokens: Sequence[int]) -> bool:
        """Whether a prompt ends inside of reasoning."""
        if self.dialect is None or not self.reasoning_tags:
            return False
        return self.dialect.is_open(self._tokenizer.shown(tokens[-_NUM_LAST_TOKENS:]))

    def before_content(self, tokens: Sequence[int]) -> str:
        """Return what stands between a prompt and content that is written already: the end of thoughts it opens."""
        if self.dialect is None or self.dialect.reasoning is None or not self.reasoning_tags:
            return ""
        if not self.is_open(tokens):
            return self.dialect.reasoning.no_begin
        end = self.dialect.reasoning.end
        return f"\n{end}\n\n" if self._tokenizer.shown(tokens[-1:]).endswith("\n") else end

    @cached_property
    def reasoning_tags(self) -> frozenset[str]:
        """The tags in the chat template after which the model is thinking."""
        return _reasoning_tags(self.dialect, self._tokenizer.template)

    @cached_property
    def reasoning_ids(self) -> frozenset[int]:
        """The tokens that are such a tag."""
        ids = (self._tokenizer.token_id(tag) for tag in self.reasoning_tags)
        return frozenset(token for token in ids if token is not None)

    def shown_ids(self, dialect: Dialect) -> frozenset[int]:
        """The control tokens whose text the dialect's parser must see."""
        is_control = self._tokenizer.is_control
        return frozenset(token for token in self.tag_ids(dialect).values() if is_control(token))

    def tags_of(self, request: ChatRequest) -> frozenset[int]:
        """Return the control tokens with which tags of the request's response format begin and end."""
        if request.response_format is None:
            return frozenset()
        names = {name for tags in structural_tags(request.response_format) for name in names_in(tags)}
        ids = {self._tokenizer.token_id(name) for name in names}
        return frozenset(token for token in ids if token is not None and self._tokenizer.is_control(token))

    def opener_ids(self, dialect: Dialect) -> frozenset[int]:
        """The tokens that end reasoning by beginning a call."""
        return frozenset(token for tag, token in self.tag_ids(dialect).items() if _ends_thoughts_by_call(dialect, tag))

    def tag_ids(self, dialect: Dialect) -> dict[str, int]:
        """The dialect's tags that are tokens of this model's own, with their ids."""
        found = self._tag_ids.get(dialect.name)
        if found is None:
            written = dialect.grammar([_PROBE], is_required=False, is_parallel=True)
            tags = dialect.markers | self.reasoning_tags | _closing(self.reasoning_tags)
            added = self._tokenizer.added
            used = {one.content: token for token, one in added.items() if one.content in tags or one.content in written}
            is_control = self._tokenizer.is_control
            found = {text: token for text, token in used.items() if is_control(token) or _IN_BRACKETS.fullmatch(text)}
            self._tag_ids[dialect.name] = found
        return found

    def _template_kwargs(self, request: ChatRequest) -> JsonObject:
        effort, template = request.reasoning_effort, self._tokenizer.template
        given = dict(request.chat_template_kwargs)
        budget = request.sampling.thinking_token_budget
        if budget is not None and template is not None and _BUDGET_VARIABLE in template.source:
            given = {_BUDGET_VARIABLE: budget} | given
        if request.assistant_prefix or request.answer_prefix:  # an answer that has begun is past its thoughts
            effort = "none"
        if effort is None or template is None:
            return given
        is_bounded = bool(self.reasoning_tags) and effort in self._limits.by_effort
        if not template.switches and effort != "none" and not is_bounded:
            raise _unsupported(request, {"reasoning_effort"}, "its chat template has no variable for it")
        values: JsonObject = {"enable_thinking": effort != "none", "thinking": effort != "none"}
        values["reasoning_effort"] = _EFFORTS.get(effort, effort)
        return {name: values[name] for name in template.switches} | given


def abilities_of(template: ChatTemplate | None, name: str, brought: Sequence[Dialect] = ()) -> tuple[str, ...]:
    """Return what a model with this chat template can be asked for, in Ollama's words, by the dialect of this name.

    `tools` are those that the template tells the model of; any other model is told of them in words.
    """
    dialect, is_sure = _dialect_of(name, template, brought)
    tools = ("tools",) if _knows_tools(dialect, template, is_sure=is_sure) else ()
    thinking = ("thinking",) if _reasoning_tags(dialect, template) else ()
    return ("completion", *tools, *thinking)


def _dialect_of(name: str, template: ChatTemplate | None, brought: Sequence[Dialect]) -> tuple[Dialect | None, bool]:
    """Return the dialect that a setting names, or that a template shows, and whether that is sure."""
    if name == "none":
        return None, True
    if name != "auto":
        return dialects(brought)[name], True
    source = template.source if template else ""
    dialect = dialect_for(source, brought)
    return dialect, dialect.matches(source)


def _knows_tools(dialect: Dialect | None, template: ChatTemplate | None, *, is_sure: bool) -> bool:
    return is_sure and dialect is not None and template is not None and template.knows_tools


def _reasoning_tags(dialect: Dialect | None, template: ChatTemplate | None) -> frozenset[str]:
    if dialect is None or template is None:
        return frozenset()
    found = {match[0].replace("/", "", 1) for match in _TAG.finditer(template.source)}
    if dialect.reasoning is not None:
        begin = dialect.reasoning.begin
        found |= {begin} if begin.strip() in template.source else set()
    return frozenset(tag for tag in found if _begins_reasoning(dialect, tag))


def _unsupported(request: ChatRequest, lacking: Set[str], reason: str) -> UnsupportedError:
    name, fields = f"native:{request.model}", sorted(needs(request) & lacking)
    return UnsupportedError(f"{name} cannot do {', '.join(fields)}: {reason}", backend=name, fields=fields)


def _is_switched_off(kwargs: Mapping[str, object]) -> bool:
    return any(kwargs.get(name) is False for name in ("enable_thinking", "thinking"))


def _begins_reasoning(dialect: Dialect, tag: str) -> bool:
    parser = dialect.parser(())
    parser.push(tag)
    return parser.is_reasoning


def _ends_thoughts_by_call(dialect: Dialect, tag: str) -> bool:
    return _thinks_after(dialect, tag, ()) and not _thinks_after(dialect, tag, (_PROBE,))


def _thinks_after(dialect: Dialect, tag: str, tools: Sequence[Tool]) -> bool:
    parser = dialect.parser(tools, is_reasoning=True)
    parser.push(tag)
    return parser.is_reasoning


def _closing(tags: frozenset[str]) -> frozenset[str]:
    return frozenset(f"{tag[0]}/{tag[1:]}" for tag in tags)


def _chosen(tools: Sequence[Tool], choice: str | JsonObject | None) -> Sequence[Tool]:
    """The tools that may be called: all, or the one that is named."""
    function = choice.get("function") if isinstance(choice, dict) else None
    if not isinstance(function, dict):
        return tools
    return [tool for tool in tools if tool.function.name == function.get("name")]  # pyright: ignore[reportUnknownMemberType]


def _instructed(messages: Sequence[Message], tools: Sequence[Tool], request: ChatRequest) -> list[Message]:
    """The messages with the tools in words at the end of the system prompt."""
    text = in_words.instruction(tools, is_parallel=request.parallel_tool_calls)
    if messages and messages[0].role in {"system", "developer"}:
        first = Message(messages[0].role, f"{messages[0].text}\n\n{text}")
        return [first, *messages[1:]]
    return [Message("system", text), *messages]


def _without_schema(tool: Tool) -> Tool:
    return msgspec.structs.replace(tool, function=msgspec.structs.replace(tool.function, parameters={"type": "object"}))
