"""Structural tags as Lark: free text up to a trigger, and then the tag that begins so. Pure text.

Free text is a lazy terminal with the trigger at its end, so that it stops at the first one; what no trigger may follow
is text without any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyagent.core.dialects.schema_text import quoted
from pyagent.core.errors import RequestError
from pyagent.core.response_format import GrammarFormat, JsonSchemaFormat, ResponseFormat
from pyagent.core.structural_tags import (
    AnyText,
    ConstString,
    Either,
    GrammarContent,
    JsonSchemaContent,
    RegexContent,
    Tag,
    TagFormat,
    TagsWithSeparator,
    TriggeredTags,
    parts_of,
)
from pyagent.core.structural_tags import Sequence as InSequence
from pyagent.core.structured_output.lark_source import ANY_TEXT, LarkWriter, expression, in_tokens, regex_literal

_PARAM = "response_format.structural_tag"
_LAZY = "[lazy]"


def tag_expression(  # noqa: PLR0911 - one for each kind
    wanted: TagFormat, writer: LarkWriter
) -> str:
    """Return the expression of a format. Raises `RequestError` naming what cannot be written."""
    match wanted:
        case ConstString():
            return writer.literal(wanted.value)
        case JsonSchemaContent() | RegexContent() | GrammarContent():
            return expression(_plain(wanted), writer)
        case AnyText():
            return writer.terminal(_text(wanted.excluded))
        case InSequence():
            return _sequence(wanted.elements, writer)
        case Either():
            _check(bool(wanted.elements), "or needs elements")
            return writer.rule(" | ".join(tag_expression(one, writer) for one in wanted.elements))
        case Tag():
            return writer.rule(f"{writer.literal(wanted.begin)} {_ended(wanted, writer)}")
        case TriggeredTags():
            return _triggered(wanted, writer)
        case TagsWithSeparator():
            return _separated(wanted, writer)


def formats_in(wanted: TagFormat) -> Iterator[ResponseFormat]:
    """Yield the schemas, patterns and grammars in a format."""
    if isinstance(wanted, JsonSchemaContent | RegexContent | GrammarContent):
        yield _plain(wanted)
    for part in parts_of(wanted):
        yield from formats_in(part)


def structural_tags(wanted: ResponseFormat) -> Iterator[TagFormat]:
    """Yield the structural tags of a format, those within it included."""
    if wanted.structural_tag is not None:
        yield wanted.structural_tag
    for member in wanted.members:
        yield from structural_tags(member)


def names_in(wanted: TagFormat) -> Iterator[str]:
    """Yield what may be names of control tokens where tags begin and end."""
    texts = list[str]()
    match wanted:
        case ConstString():
            texts = [wanted.value]
        case Tag():
            texts = [wanted.begin, *wanted.ends]
        case TriggeredTags():
            texts = wanted.triggers
        case TagsWithSeparator():
            texts = [wanted.separator]
        case _:
            pass
    yield from (part for text in texts for part, is_name in in_tokens(text) if is_name)
    for part in parts_of(wanted):
        yield from names_in(part)


def _plain(wanted: JsonSchemaContent | RegexContent | GrammarContent) -> ResponseFormat:
    match wanted:
        case JsonSchemaContent():
            schema = wanted.json_schema
            _check(schema is not False, "json_schema false allows nothing")
            return ResponseFormat("json_schema", JsonSchemaFormat(schema={} if isinstance(schema, bool) else schema))
        case RegexContent():
            return ResponseFormat("regex", regex=wanted.pattern)
        case GrammarContent():
            return ResponseFormat("grammar", grammar=GrammarFormat.of(wanted.grammar))


def _ended(tag: Tag, writer: LarkWriter) -> str:
    """Return the expression of a tag after its beginning: its content up to its end."""
    _check(bool(tag.ends), f"the tag {tag.begin[:40]!r} needs an end")
    end = "" if tag.ends == [""] else " | ".join(map(writer.literal, tag.ends))
    match tag.content:
        case AnyText() if end:
            return _up_to(tag.ends, tag.content.excluded, writer)
        case RegexContent() if end and not any(writer.until_token(one) is not None for one in tag.ends):
            return writer.rule(f"({regex_literal(tag.content.pattern)}) ({end})", _LAZY)
        case _:
            content = tag_expression(tag.content, writer)
            return f"{content} ({end})" if end else content


def _up_to(ends: Sequence[str], excluded: Sequence[str], writer: LarkWriter) -> str:
    """Return the expression of free text up to the first of some texts, and with it.

    A control token is in no text, so that what comes before it may be all there is; of letters the first ones end it.
    """
    texts = [end for end in ends if writer.until_token(end) is None]
    ways = list[str]()
    if texts:
        ways.append(
            writer.rule(f"{writer.terminal(_text(excluded))} ({' | '.join(map(quoted, dict.fromkeys(texts)))})", _LAZY)
        )
    for end in dict.fromkeys(ends):
        at = writer.until_token(end)
        if at is not None:
            body = _text([*excluded, *texts])
            before = writer.terminal(f"({body}) {quoted(end[:at])}" if at else body)
            ways.append(f"{before} {writer.literal(end[at:])}")
    return ways[0] if len(ways) == 1 else writer.rule(" | ".join(ways))


def _sequence(elements: Sequence[TagFormat], writer: LarkWriter) -> str:
    _check(bool(elements), "sequence needs elements")
    for element in elements[:-1]:
        is_open = isinstance(element, AnyText | TriggeredTags)
        _check(not is_open, "free text in a sequence comes last; put what it ends with around it, as a tag")
    return writer.rule(" ".join(tag_expression(one, writer) for one in elements))


def _triggered(wanted: TriggeredTags, writer: LarkWriter) -> str:
    """Return the expression of tags in free text."""
    _check(bool(wanted.tags), "triggered_tags needs tags")
    _check(bool(wanted.triggers) and all(wanted.triggers), "triggered_tags needs triggers, none of them empty")
    trigger_to_tags = dict[str, list[Tag]]()
    for tag in wanted.tags:
        trigger = _whole(_trigger_of(tag, wanted.triggers), tag.begin, writer)
        trigger_to_tags.setdefault(trigger, []).append(tag)
    triggered = writer.rule(
        " | ".join(_after(trigger, tags, wanted, writer) for trigger, tags in trigger_to_tags.items())
    )
    tail = writer.terminal(_text([*wanted.triggers, *wanted.excludes]))
    first = writer.rule(" | ".join(tag_expression(tag, writer) for tag in wanted.tags)) if wanted.at_least_one else ""
    if wanted.stop_after_first:
        return first or writer.rule(f"{triggered} | {tail}")
    return writer.rule(f"{first} {triggered}* {tail}")


def _trigger_of(tag: Tag, triggers: Sequence[str]) -> str:
    found = [trigger for trigger in dict.fromkeys(triggers) if tag.begin.startswith(trigger)]
    shown = f"the tag {tag.begin[:40]!r}"
    _check(bool(found), f"{shown} begins with none of the triggers")
    _check(len(found) == 1, f"{shown} begins with several triggers: {', '.join(map(repr, found[:3]))}")
    return found[0]


def _whole(trigger: str, begin: str, writer: LarkWriter) -> str:
    """Return a trigger that ends within a control token with all of that: it comes as one, or not at all."""
    at = 0
    for part, _ in in_tokens(begin):
        if at < len(trigger) < at + len(part) and writer.until_token(part) is not None:
            return begin[: at + len(part)]
        at += len(part)
    return trigger


def _after(trigger: str, tags: Sequence[Tag], wanted: TriggeredTags, writer: LarkWriter) -> str:
    """Return the expression of text up to a trigger, and the tags that may follow it."""
    is_token = writer.until_token(trigger) is not None  # then no trigger is in letters before it
    head = _up_to([trigger], [*wanted.excludes, *(wanted.triggers if is_token else ())], writer)
    rests = (f"{writer.literal(tag.begin.removeprefix(trigger))} {_ended(tag, writer)}" for tag in tags)
    return writer.rule(f"{head} ({' | '.join(rests)})")


def _separated(wanted: TagsWithSeparator, writer: LarkWriter) -> str:
    _check(bool(wanted.tags), "tags_with_separator needs tags")
    tag = writer.rule(" | ".join(tag_expression(tag, writer) for tag in wanted.tags))
    more = "" if wanted.stop_after_first else f"({writer.literal(wanted.separator)} {tag})*"
    return writer.rule(f"{tag} {more}" if wanted.at_least_one else f"({tag} {more})?")


def _text(excluded: Sequence[str]) -> str:
    """Return the body of a terminal for text in which none of some texts stands."""
    if not excluded:
        return ANY_TEXT
    _check(all(excluded), "an excluded text is empty")
    return f"{ANY_TEXT} & ~({ANY_TEXT} ({' | '.join(map(quoted, excluded))}) {ANY_TEXT})"


def _check(is_right: bool, text: str) -> None:
    if not is_right:
        raise RequestError(f"response_format.structural_tag: {text}", param=_PARAM)
