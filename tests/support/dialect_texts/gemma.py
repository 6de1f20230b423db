"""Gemma: bare keys, strings between two of one token."""

from support.dialect_texts import Case


def gemma(begin: str, end: str, quote: str) -> list[Case]:
    """Calls between tags."""
    weather = f"{begin}call:get_weather{{city:{quote}Oslo{quote},days:3,metric:true}}{end}"
    called = ("get_weather", {"city": "Oslo", "days": 3, "metric": True})
    return [
        Case("one call", weather, calls=[called]),
        Case("two calls", f"{weather}{begin}call:now{{}}{end}", calls=[called, ("now", {})]),
        Case("text around", f"a\n{weather}\nb", "a\n\nb", calls=[called]),
        Case(
            "text with everything in it",
            f"{begin}call:write_note{{text:{quote}a \"b\" 'c' }} ,:\\n\n{quote}}}{end}",
            calls=[("write_note", {"text": "a \"b\" 'c' } ,:\\n\n"})],
        ),
        Case(
            "nested",
            f"{begin}call:write_note{{options:{{a:[1,{quote}x{quote},{{}}],{quote}b c{quote}:null}},score:-1.5,"
            f"tags:[{quote}t{quote}],text:{quote}{quote}}}{end}",
            calls=[
                ("write_note", {"options": {"a": [1, "x", {}], "b c": None}, "score": -1.5, "tags": ["t"], "text": ""})
            ],
        ),
        Case(
            "a string without quotes",
            f"{begin}call:get_weather{{city:New York}}{end}",
            calls=[("get_weather", {"city": "New York"})],
        ),
        Case("not offered", f"{begin}call:fly{{}}{end}", calls=[("fly", {})]),
        Case("cut", f"{begin}call:get_weather{{city:{quote}Os", calls=[("get_weather", '{"city": "Os')]),
        Case("cut in a number", f"{begin}call:get_weather{{days:3", calls=[("get_weather", '{"days": "3')]),
        Case("cut in the name", f"{begin}call:get", f"{begin}call:get"),
        Case("no call", f"{begin}get weather{{", f"{begin}get weather{{"),
        Case(
            "not closed",
            f"{begin}call:get_weather{{city:{quote}Oslo{quote}{end}so",
            "so",
            "",
            [("get_weather", {"city": "Oslo"})],
        ),
        Case("without tools", weather, weather, has_tools=False),
    ]
