"""An agent's own options: what its `arguments` struct declares, as `--key value` on the command line.

Each text is read as its field's type says, never guessed: `5` stays a text for a `str`. An agent that takes one of
several tagged structs gets the one that its tag names, or else the only one that has all the options given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin

import msgspec

from pyagent.cli.input import text_or_input
from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Agent, Task, arguments_type
from pyagent.core.nearest import did_you_mean

_TYPE_NAMES: dict[object, str] = {str: "TEXT", int: "INTEGER", float: "NUMBER", bool: ""}


@dataclass(frozen=True, slots=True)
class Option:
    """A field of a struct as an option. `type` is the field's, as Python has it."""

    name: str
    type: object
    is_required: bool
    default: object = None

    @property
    def flag(self) -> str:
        """How it is written: `--num-sentences`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def is_switch(self) -> bool:
        """Whether it is true or false, and needs no value."""
        return _without_none(self.type) is bool

    @property
    def is_list(self) -> bool:
        """Whether it may be given several times."""
        return get_origin(_without_none(self.type)) in {list, tuple, set, frozenset}

    @property
    def takes_text(self) -> bool:
        """Whether any text is a value of it."""
        return _convert("text", self.type, is_strict=True) == "text"

    def read(self, texts: Sequence[str]) -> object:
        """Return the value that the texts mean, fit for JSON; raises `RequestError` when they mean none."""
        if self.is_list and (len(texts) > 1 or not texts[0].lstrip().startswith("[")):
            value = _convert(list(texts), self.type, is_strict=False)
        else:
            value = self._one(texts[-1])
        if value is _NOTHING:
            wanted = type_text(self.type) or "true or false"
            raise RequestError(f"{self.flag} takes {wanted}, got {' '.join(texts)!r}", param=self.name)
        return msgspec.to_builtins(value)

    def _one(self, text: str) -> object:
        for is_strict in (True, False):
            if (value := _convert(text, self.type, is_strict=is_strict)) is not _NOTHING:
                return value
        try:
            return cast("object", msgspec.json.decode(text, type=cast("Any", self.type)))
        except (msgspec.DecodeError, UnicodeEncodeError):
            return _NOTHING


@dataclass(frozen=True, slots=True)
class Variant:
    """A struct that the agent takes: its options, and the tag that chooses it among several."""

    options: Mapping[str, Option]
    about: str = ""
    tag_field: str = ""
    tag: str = ""
    names: frozenset[str] = field(default_factory=frozenset[str])


_NOTHING = object()


def variants_of(agent: Agent) -> list[Variant]:
    """Return the structs that the agent takes as arguments; empty when it takes text only."""
    kind = arguments_type(agent)
    members = get_args(kind) if get_origin(kind) in {Union, UnionType} else (kind,)
    structs = [member for member in members if isinstance(member, type) and issubclass(member, msgspec.Struct)]
    return [_variant(struct) for struct in structs]


def _variant(struct: type[msgspec.Struct]) -> Variant:
    config = struct.__struct_config__
    options = {each.encode_name: _option(each) for each in msgspec.structs.fields(struct)}
    return Variant(
        options=options,
        about=(struct.__doc__ or "").partition("\n")[0],
        tag_field=str(config.tag_field or ""),
        tag=str(config.tag or ""),
        names=frozenset(options) | ({str(config.tag_field)} if config.tag_field else frozenset[str]()),
    )


def _option(told: msgspec.structs.FieldInfo) -> Option:
    default = None if told.default is msgspec.NODEFAULT else cast("object", told.default)
    return Option(told.encode_name, cast("object", told.type), is_required=told.required, default=default)


def task_of(agent: Agent, words: Sequence[str], files: Sequence[str]) -> Task:
    """Return the task that the words after an agent's name mean: its text, and its options as arguments.

    Where options are given and a required text is not, it is what the words say: `math "x^2" --action integrate`.
    Without words the text is standard input, unless files or an option of free text say what to do.
    """
    variants = variants_of(agent)
    text, given = _split(agent, words, variants)
    texts = {name for variant in variants for name, option in variant.options.items() if option.takes_text}
    text = text_or_input(text, has_more=bool(files or texts & given.keys()) or _says_all(variants, given))
    if not given:
        return Task(text=text, files=tuple(files))
    variant = _chosen(variants, given)
    arguments = {name: variant.options[name].read(texts) for name, texts in given.items() if name in variant.options}
    if variant.tag_field:
        arguments[variant.tag_field] = variant.tag
    missing = [option for option in variant.options.values() if option.is_required and option.name not in arguments]
    if text and len(missing) == 1 and missing[0].takes_text:
        arguments[missing.pop().name] = text
    if missing:
        raise RequestError(f"{agent.name} needs {', '.join(option.flag for option in missing)}", param=missing[0].name)
    return Task(text=text, files=tuple(files), arguments=arguments)


def _says_all(variants: Sequence[Variant], given: Mapping[str, Sequence[str]]) -> bool:
    """Whether the options name a struct that needs no text: `stream --action list`."""
    named = [one for one in variants if one.tag_field and given.get(one.tag_field, ("",))[-1] == one.tag]
    return any(not any(option.is_required and option.takes_text for option in one.options.values()) for one in named)


def _split(agent: Agent, words: Sequence[str], variants: Sequence[Variant]) -> tuple[str, dict[str, list[str]]]:
    """Return the plain words as a text, and the texts of each option by its name."""
    known = {name: option for variant in variants for name, option in variant.options.items()}
    known |= {each.tag_field: Option(each.tag_field, str, is_required=False) for each in variants if each.tag_field}
    text: list[str] = []
    given: dict[str, list[str]] = {}
    rest = iter(words)
    for word in rest:
        if word == "--":
            text += rest
        elif not word.startswith("--"):
            text.append(word)
        else:
            name, value = _option_in(agent, word, known)
            if value is None:
                value = "true" if known[name].is_switch else next(rest, None)
            if value is None:
                raise RequestError(f"the option {word} needs a value", param=name)
            given.setdefault(name, []).append(value)
    return " ".join(text), given


def _option_in(agent: Agent, word: str, known: Mapping[str, Option]) -> tuple[str, str | None]:
    """Return the option's name in a word such as `--top=3` or `--no-cache`, and its value if that is there too."""
    key, has_value, value = word[2:].partition("=")
    name = key.replace("-", "_")
    name = key if key in known else name
    if name in known:
        return name, value if has_value else None
    if name.startswith("no_") and (positive := known.get(name[3:])) and positive.is_switch:
        return name[3:], "false"
    if not known:
        raise RequestError(f"{agent.name} takes no options, got {word}", param="arguments")
    flags = [option.flag for option in known.values()]
    hint = did_you_mean(f"--{key}", flags, f"it has {', '.join(flags)}")
    raise RequestError(f"{agent.name} has no option --{key}; {hint}", param="arguments")


def _chosen(variants: Sequence[Variant], given: Mapping[str, Sequence[str]]) -> Variant:
    """Return the struct that the tag names, else the only one with all the options given."""
    tag_field = variants[0].tag_field
    tags = ", ".join(variant.tag for variant in variants)
    if tag_field in given:
        named = [variant for variant in variants if variant.tag == given[tag_field][-1]]
        if not named:
            raise RequestError(f"--{tag_field} is one of {tags}; got {given[tag_field][-1]!r}", param=tag_field)
        unknown = [name for name in given if name not in named[0].names]
        if unknown:
            flags = ", ".join(option.flag for option in named[0].options.values())
            raise RequestError(f"{named[0].tag} takes {flags}; it has no --{unknown[0]}", param=unknown[0])
        return named[0]
    fitting = [variant for variant in variants if variant.names >= given.keys()]
    if len(fitting) != 1:
        raise RequestError(f"say which with --{tag_field}: one of {tags}", param=tag_field)
    return fitting[0]


def help_of(agent: Agent) -> str:
    """Return what `pyagent agent NAME --help` shows of the agent: its description, and its own options."""
    lines = [f"Usage: pyagent agent {agent.name} [OPTIONS] [WORDS]...", "", f"  {agent.description}"]
    variants = variants_of(agent)
    for variant in variants:
        heading = f"--{variant.tag_field} {variant.tag}" if len(variants) > 1 else "Options of this agent"
        about = f" {variant.about}" if len(variants) > 1 else ""
        lines += ["", f"{heading}:{about}", *_aligned(variant.options.values())]
    return "\n".join(lines)


def _aligned(options: Iterable[Option]) -> Iterator[str]:
    rows = [(f"{option.flag} {type_text(option.type)}".rstrip(), _note(option)) for option in options]
    width = max((len(usage) for usage, _ in rows), default=0)
    return (f"  {usage:<{width}}  {note}".rstrip() for usage, note in rows)


def _note(option: Option) -> str:
    about = " ".join(each.description for each in _metadata(option.type) if each.description)
    notes = ["required"] if option.is_required else []
    notes += [f"default: {option.default}"] if option.default not in (None, "", False) else []
    notes += ["may be repeated"] if option.is_list else []
    return " ".join([*([about] if about else []), *(f"[{note}]" for note in notes)])


def _metadata(kind: object) -> list[msgspec.Meta]:
    return [each for each in getattr(kind, "__metadata__", ()) if isinstance(each, msgspec.Meta)]


def type_text(kind: object) -> str:
    """Return how a type is written in help: `INTEGER`, `INTEGER from 1 to 20`, `a|b`, and nothing for a switch."""
    bounds = _bounds_text(kind)
    kind = _without_none(kind)
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    if get_origin(kind) in {list, tuple, set, frozenset}:
        return type_text(next(iter(get_args(kind)), str))
    return _TYPE_NAMES.get(kind, "TEXT" if _convert("text", kind, is_strict=True) == "text" else "JSON") + bounds


def _bounds_text(kind: object) -> str:
    """Return a number's bounds, ` from 1 to 20`; nothing where its type does not have both."""
    if get_origin(kind) in {Union, UnionType}:
        return "".join(map(_bounds_text, get_args(kind)))
    metas = [meta for meta in getattr(kind, "__metadata__", ()) if isinstance(meta, msgspec.Meta)]
    return "".join(f" from {meta.ge} to {meta.le}" for meta in metas if meta.ge is not None and meta.le is not None)


def _without_none(kind: object) -> object:
    """Return the type without its annotations, and without None where one other type is left."""
    if hasattr(kind, "__metadata__"):
        return _without_none(get_args(kind)[0])
    if get_origin(kind) not in {Union, UnionType}:
        return kind
    left = [member for member in get_args(kind) if member is not type(None)]
    return _without_none(left[0]) if len(left) == 1 else kind


def _convert(value: object, kind: object, *, is_strict: bool) -> object:
    """Return the value as the type, or `_NOTHING` when it is none of it."""
    try:
        return cast("object", msgspec.convert(value, cast("Any", kind), strict=is_strict))
    except (msgspec.ValidationError, TypeError):
        return _NOTHING
