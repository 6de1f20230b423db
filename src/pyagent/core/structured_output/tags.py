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
from pyagent.core.structured_output.lark_source import ANY_TEXT, LarkWriter, expression, regex_literal

_PARAM = "response_format.structural_tag"
_LAZY = "[lazy]"


def tag_expression(  # noqa: PLR0911 - one for each kind
    wanted: TagFormat, writer: LarkWriter
) -> str:
    """Return the expression of a format. Raises `RequestError` naming what cannot be written."""
    match wanted:
        case ConstString():
            return quoted(wanted.value)
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
            return writer.rule(f"{quoted(wanted.begin)} {_ended(wanted, writer)}")
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
    end = "" if tag.ends == [""] else " | ".join(map(quoted, tag.ends))
    match tag.content:
        case AnyText() if end:  # up to the first end
            return writer.rule(f"{writer.terminal(_text(tag.content.excluded))} ({end})", _LAZY)
        case RegexContent() if end:
            return writer.rule(f"({regex_literal(tag.content.pattern)}) ({end})", _LAZY)
        case _:
            content = tag_expression(tag.content, writer)
            return f"{content} ({end})" if end else content


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
    trigger_to_tags = {trigger: list[Tag]() for trigger in wanted.triggers}
    for tag in wanted.tags:
        trigger_to_tags[_trigger_of(tag, wanted.triggers)].append(tag)
    triggered = writer.rule(
        " | ".join(_after(trigger, tags, wanted.excludes, writer) for trigger, tags in trigger_to_tags.items() if tags)
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


def _after(trigger: str, tags: Sequence[Tag], excludes: Sequence[str], writer: LarkWriter) -> str:
    """Return the expression of text up to a trigger, and the tags that may follow it."""
    head = writer.rule(f"{writer.terminal(_text(excludes))} {quoted(trigger)}", _LAZY)
    rests = (f"{_literal(tag.begin.removeprefix(trigger))} {_ended(tag, writer)}" for tag in tags)
    return writer.rule(f"{head} ({' | '.join(rests)})")


def _separated(wanted: TagsWithSeparator, writer: LarkWriter) -> str:
    _check(bool(wanted.tags), "tags_with_separator needs tags")
    tag = writer.rule(" | ".join(tag_expression(tag, writer) for tag in wanted.tags))
    more = "" if wanted.stop_after_first else f"({_literal(wanted.separator)} {tag})*"
    return writer.rule(f"{tag} {more}" if wanted.at_least_one else f"({tag} {more})?")


def _text(excluded: Sequence[str]) -> str:
    """Return the body of a terminal for text in which none of some texts stands."""
    if not excluded:
        return ANY_TEXT
    _check(all(excluded), "an excluded text is empty")
    return f"{ANY_TEXT} & ~({ANY_TEXT} ({' | '.join(map(quoted, excluded))}) {ANY_TEXT})"


def _literal(text: str) -> str:
    return quoted(text) if text else ""


def _check(is_right: bool, text: str) -> None:
    if not is_right:
        raise RequestError(f"response_format.structural_tag: {text}", param=_PARAM)
