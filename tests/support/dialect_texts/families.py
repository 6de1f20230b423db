"""Answers that dialects of one family share, but for their tags."""

from __future__ import annotations

import json
from typing import Any

from support.dialect_texts import Case

CITY, NIGHT = (
    {"city": "Oslo"},
    {"text": 'a "b" {[\n', "tags": ["x", "}"], "options": {"a": [1, None, True]}, "score": -1.5},
)


def listed(
    opener: str, closer: str = "", *, name: str = "name", arguments: str = "arguments", bare: bool = False
) -> list[Case]:
    """Lists of JSON objects between tags."""

    def called(called_name: str, values: Any) -> str:
        return json.dumps({name: called_name, arguments: values}, ensure_ascii=False)

    cases = [
        Case("one call", f"{opener}[{called('get_weather', CITY)}]{closer}", calls=[("get_weather", CITY)]),
        Case(
            "two calls",
            f"{opener}[{called('get_weather', CITY)}, {called('now', {})}]{closer}",
            calls=[("get_weather", CITY), ("now", {})],
        ),
        Case(
            "spaces everywhere",
            f"\n{opener}  [ \n {called('now', {})} ,\n{called('now', {})}\n ]\n{closer}\n",
            calls=[("now", {}), ("now", {})],
        ),
        Case("nested values", f"{opener}[{called('write_note', NIGHT)}]{closer}", calls=[("write_note", NIGHT)]),
        Case("text before", f"Let me see.\n{opener}[{called('now', {})}]{closer}", "Let me see.", calls=[("now", {})]),
        Case("no arguments", f'{opener}[{{"{name}": "now"}}]{closer}', calls=[("now", {})]),
        Case(
            "cut in its arguments",
            f'{opener}[{{"{name}": "get_weather", "{arguments}": {{"city": "Os',
            calls=[("get_weather", '{"city": "Os')],
        ),
        Case("cut before a name", f'{opener}[{{"{name}": "get', f'{opener}[{{"{name}": "get'),
        Case("no call", f"{opener}[1, 2]", f"{opener}[1, 2]"),
        Case("no name", f'{opener}[{{"{arguments}": 1}}]', f'{opener}[{{"{arguments}": 1}}]'),
        Case("only text", "Just text, [1] and {2}.", "Just text, [1] and {2}."),
    ]
    if not bare:
        cases += [
            Case("no brackets", f"{opener}{called('get_weather', CITY)}{closer}", calls=[("get_weather", CITY)]),
            Case("not offered", f"{opener}[{called('fly', {})}]{closer}", calls=[("fly", {})]),
            Case("without tools", f"a {opener}[] b", f"a {opener}[] b", has_tools=False),
        ]
    if closer:
        cases.append(Case("text after", f"{opener}[{called('now', {})}]{closer} done", "done", calls=[("now", {})]))
    return cases


def bare(arguments: str) -> list[Case]:
    """JSON objects without tags, alone or in a list."""
    fly, now = (f'{{"name": "{name}", "{arguments}": {{}}}}' for name in ("fly", "now"))
    return [
        *listed("", arguments=arguments, bare=True),
        Case(
            "an object alone",
            f'{{"name": "get_weather", "{arguments}": {{"city": "Oslo"}}}}',
            calls=[("get_weather", {"city": "Oslo"})],
        ),
        Case("an answer in JSON", '{"city": "Oslo", "name": "now"}', '{"city": "Oslo", "name": "now"}'),
        Case("a function that is not offered", fly, fly),
        Case("in the midst of a line", 'so {"name": "now"}', 'so {"name": "now"}'),
        Case("on a line", 'so:\n{"name": "now"}\nand', "so:\nand", calls=[("now", {})]),
        Case("one on each line", '{"name": "now"}\n{"name": "now"}', calls=[("now", {}), ("now", {})]),
        Case("OpenAI's shape", f'{{"type": "function", "function": {now}}}', calls=[("now", {})]),
        Case("code", "{\n  a\n}\n", "{\n  a\n}\n"),
        Case("reasoning first", '<think>hm</think>\n{"name": "now"}', reasoning="hm", calls=[("now", {})]),
    ]


def thought(begin: str, end: str) -> list[Case]:
    """Reasoning between tags."""
    return [
        Case("reasoning", f"{begin}\nhm\n{end}\n\nyes", "yes", "hm"),
        Case("reasoning that never ends", f"{begin}hm", reasoning="hm"),
        Case("reasoning that the prompt began", f"hm{end}yes", "yes", "hm", is_reasoning=True),
    ]


def python_calls(opener: str, closer: str, brackets: str = "[]", separator: str = ", ") -> list[Case]:
    """Calls as Python writes them."""
    begin, end = opener + brackets[:1], brackets[1:] + closer
    weather = ("get_weather", {"city": "Oslo", "days": 3, "metric": True})
    cases = [
        Case("one call", f'{begin}get_weather(city="Oslo", days=3, metric=True){end}', calls=[weather]),
        Case(
            "two calls",
            f"{begin}get_weather(city='Oslo', days=3, metric=True){separator}now(){end}",
            calls=[weather, ("now", {})],
        ),
        Case(
            "nested values",
            f"{begin}write_note(text='it\\'s \"x\"\\n', tags=['a', \"b]\",], "
            f"options={{'k': [1, None, {{'d': False}}], 'e': ()}}, score=-1.5){end}",
            calls=[
                (
                    "write_note",
                    {
                        "text": 'it\'s "x"\n',
                        "tags": ["a", "b]"],
                        "options": {"k": [1, None, {"d": False}], "e": []},
                        "score": -1.5,
                    },
                )
            ],
        ),
        Case(
            "spaces",
            f"{begin}get_weather( city = 'Oslo' , days= 3 ){end}",
            calls=[("get_weather", {"city": "Oslo", "days": 3})],
        ),
        Case(
            "JSON's constants",
            f"{begin}write_note(text='', score=null){end}",
            calls=[("write_note", {"text": "", "score": None})],
        ),
        Case(
            "escapes",
            rf"{begin}write_note(text='\x41\u00e9\U0001F600\\ \q'){end}",
            calls=[("write_note", {"text": "Aé😀\\ \\q"})],
        ),
        Case(
            "triple quotes",
            f'{begin}write_note(text="""a "quoted"\nline"""){end}',
            calls=[("write_note", {"text": 'a "quoted"\nline'})],
        ),
        Case(
            "without a keyword",
            f"{begin}get_weather('Oslo', 2){end}",
            calls=[("get_weather", {"city": "Oslo", "days": 2})],
        ),
        Case(
            "no literal",
            f"{begin}write_note(text=str(1, 2), score=1_000){end}",
            calls=[("write_note", {"text": "str(1, 2)", "score": 1000})],
        ),
        Case("cut in a string", f"{begin}get_weather(city='Os", calls=[("get_weather", '{"city": "Os')]),
        Case("cut in a number", f"{begin}get_weather(days=3", calls=[("get_weather", '{"days": "3')]),
        Case("cut in a name", f"{begin}get_wea", f"{begin}get_wea"),
        Case("no call", f"{begin}1, 2{end}", f"{begin}1, 2{end}"),
        Case(
            "a comma is missing",
            f"{begin}get_weather(city='Oslo' days=3 metric=True){end}",
            calls=[weather],
        ),
        Case(
            "expressions",
            f"{begin}write_note(text='a' 'b' + \"c\", tags={{'x', 'y'}}, score=1 + 2, options={{'a': 7 // 2}}){end}",
            calls=[("write_note", {"text": "abc", "tags": ["x", "y"], "score": "1 + 2", "options": {"a": "7 // 2"}})],
        ),
        Case(
            "comments",
            f"{begin}get_weather(  # so\n  city='Oslo',  # a town, (of Norway)\n  days=3  # nights\n){end}",
            calls=[("get_weather", {"city": "Oslo", "days": 3})],
        ),
        Case(
            "a value is missing",
            f"{begin}get_weather(city=, days=3){end}",
            calls=[("get_weather", {"city": None, "days": 3})],
        ),
        Case(
            "raw strings and names",
            rf"{begin}write_note(text=r'\d\n', tags=[a, 007, nan]){end}",
            calls=[("write_note", {"text": "\\d\\n", "tags": ["a", "007", "nan"]})],
        ),
        Case(
            "broken after a list",
            f"{begin}write_note(tags=['a'] * 2){end} so",
            "* 2)" + end.replace(closer, "") + " so" if closer else f"* 2){end} so",
            calls=[("write_note", {"tags": ["a"]})],
        ),
    ]
    if brackets and not opener:
        cases.append(Case("not offered", "[fly(to='Oslo')]", "[fly(to='Oslo')]"))
        cases.append(Case("in the midst of a line", "see [now()]", "see [now()]"))
        cases.append(Case("on a line", "see\n[now()]", "see", calls=[("now", {})]))
    return cases


def elements(
    begin: str, head: str, key: str, value_end: str, close: str, end: str, *, newline: str = "\n", flags: bool = False
) -> list[Case]:
    """Calls as elements; `head` and `key` have `{}` for the name, `newline` is what stands around a value."""

    def call(name: str, **values: str) -> str:
        parts = [
            key.format(one if not flags else f'{one}" string="{"true" if one in {"city", "text", "unit"} else "false"}')
            + f"{newline}{value}{newline}{value_end}\n"
            for one, value in values.items()
        ]
        return head.format(name) + "\n" + "".join(parts) + close

    def whole(name: str, **values: str) -> str:
        return f"{begin}\n{call(name, **values)}\n{end}"

    now, everything = whole("now"), 'a "b" <x> \\ {\n\n</y>\n'
    types = {"city": "Oslo", "days": "3", "metric": "true"}
    json_values = {"text": "5", "tags": '["a", "b"]', "options": '{"a": {"b": null}}', "score": "2.5"}
    python_values = {"text": "True", "tags": "['a', 'b']", "options": "{'a': True}", "score": "None"}
    return [
        Case("no arguments", now, calls=[("now", {})]),
        Case(
            "types", whole("get_weather", **types), calls=[("get_weather", {"city": "Oslo", "days": 3, "metric": True})]
        ),
        Case(
            "text with everything in it",
            whole("write_note", text=everything),
            calls=[("write_note", {"text": everything})],
        ),
        Case(
            "lists and objects",
            whole("write_note", **json_values),
            calls=[("write_note", {"text": "5", "tags": ["a", "b"], "options": {"a": {"b": None}}, "score": 2.5})],
        ),
        Case(
            "Python's literals",
            whole("write_note", **python_values),
            calls=[("write_note", {"text": "True", "tags": ["a", "b"], "options": {"a": True}, "score": None})],
        ),
        Case(
            "a value of another type stays a string",
            whole("get_weather", city="7", days="soon"),
            calls=[("get_weather", {"city": "7", "days": "soon"})],
        ),
        Case(
            "a parameter and a function that are not known",
            whole("fly", to="Oslo", height="900"),
            calls=[("fly", {"to": "Oslo", "height": 900})],
        ),
        Case("text before", f"So:\n\n{now}", "So:", calls=[("now", {})]),
        Case("text after", f"{now}\nThere.", "There.", calls=[("now", {})]),
        Case("an empty value", whole("get_weather", city=""), calls=[("get_weather", {"city": ""})]),
        Case(
            "cut in a value",
            whole("get_weather", city="Oslo").partition("lo")[0],
            calls=[("get_weather", '{"city": "Os')],
        ),
        Case(
            "cut between values",
            whole("get_weather", days="3").partition(close)[0],
            calls=[("get_weather", '{"days": 3')],
        ),
        Case(
            "cut in a value that is no text",
            whole("get_weather", days="37").partition("7")[0],
            calls=[("get_weather", '{"days": "' + ("\\n" if newline else "") + "3")],
        ),
        Case("only text", "a < b, <c> </d>", "a < b, <c> </d>"),
        Case("without tools", now, now, has_tools=False),
        Case("reasoning", f"<think>\nhm\n</think>\n\n{now}", reasoning="hm", calls=[("now", {})]),
    ]
