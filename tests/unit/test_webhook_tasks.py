"""A hook's task with a payload's values in their places, whatever the payload is."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.json_values import json_value

from pyagent.core.errors import RequestError
from pyagent.core.webhooks.incoming import task_of

PAYLOAD = {"issue": {"title": "a {payload} b", "labels": [{"name": "x"}], "number": 7, "closed": None}}


@pytest.mark.parametrize(
    ("template", "task"),
    [
        ("{issue.title}", "a {payload} b"),
        ("{event}: {issue.number}", "opened: 7"),
        ("{issue.labels.0.name} {issue.closed}", "x null"),
        ("{issue.labels}", '[{"name":"x"}]'),
        ("{ issue } {} {1} {{x}", None),
        ("plain", "plain"),
    ],
)
def test_values_stand_in_their_places(template: str, task: str | None) -> None:
    """Texts as they are, all else as JSON; what is put in is no place, and braces around other things stay."""
    if task is None:
        with pytest.raises(RequestError, match="the payload has no x, which the hook's task asks for"):
            task_of(template, PAYLOAD, "opened")
    else:
        assert task_of(template, PAYLOAD, "opened") == task


@pytest.mark.parametrize("place", ["issue.labels.1.name", "issue.labels.-1", "issue.title.0", "nothing", "event.x"])
def test_a_place_that_is_not_there_is_named(place: str) -> None:
    """An index beyond the end, a part of a text, an unknown name."""
    with pytest.raises(RequestError, match="the payload has no"):
        task_of(f"{{{place}}}", PAYLOAD, "")


@given(json_value, st.text(max_size=60))
def test_any_payload_makes_a_task_or_is_refused(payload: object, template: str) -> None:
    """Nothing but `RequestError` comes of a template and a payload."""
    assert isinstance(task_of("{payload}", payload, ""), str)
    with suppress(RequestError):
        task_of(template + "{a.b.0}", payload, "e")
