"""Signatures of webhooks: the published vectors, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.errors import RequestError
from pyagent.core.webhooks.schedule import Answer, Schedule, retry_after_seconds
from pyagent.core.webhooks.signing import key_of, new_secret, sign, signed_headers, verify, verify_github

SECRET, ID, AT = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330
BODY = b'{"test": 2432232314}'
KEY = key_of(SECRET)


def _right(**changed: str) -> dict[str, str]:
    return signed_headers([KEY], ID, AT, BODY) | {name.replace("_", "-"): value for name, value in changed.items()}


def test_vectors_of_standard_webhooks_and_of_github() -> None:
    """The signatures that the specification's libraries and GitHub's documentation have."""
    assert sign([KEY], ID, AT, BODY) == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert verify(_right(), BODY, [KEY], AT) == (ID, AT)
    github = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    headers = {"x-hub-signature-256": github, "x-github-delivery": "72d3162e"}
    signed = verify_github(headers, b"Hello, World!", [b"It's a Secret to Everybody"])
    again = verify_github(headers | {"x-github-delivery": "other"}, b"Hello, World!", [b"It's a Secret to Everybody"])
    assert signed == again, "what is not signed does not make a message another one"
    with pytest.raises(RequestError, match="x-hub-signature-256 is not right"):
        verify_github(headers, b"Hello, World!!", [b"It's a Secret to Everybody"])


@given(st.binary(max_size=200), st.integers(0, 2**33))
def test_what_is_signed_verifies_and_nothing_else(body: bytes, at: int) -> None:
    """Any body at any time verifies by its key, also among others; a byte more does not."""
    other = key_of(new_secret())
    headers = signed_headers([other, KEY], ID, at, body)
    assert verify(headers, body, [KEY], at).id == ID
    with pytest.raises(RequestError, match="no signature"):
        verify(headers, body + b" ", [KEY], at)


@pytest.mark.parametrize(
    ("headers", "now", "said"),
    [
        (_right(webhook_signature=""), AT, "webhook-signature is missing"),
        (_right(webhook_signature="v1,AAAA v1a,AAAA nonsense"), AT, "no signature"),
        (_right(webhook_id="msg_other"), AT, "no signature"),
        (_right(webhook_id="msg.other"), AT, "without full stops"),
        (_right(webhook_id="m" * 300), AT, "over 256 characters"),
        (_right(webhook_timestamp=str(AT + 1)), AT, "no signature"),
        (_right(webhook_timestamp="1e9"), AT, "whole seconds"),
        (_right(), AT + 301, "too old"),
        (_right(), AT - 301, "too far ahead"),
    ],
)
def test_what_is_not_right_is_refused(headers: dict[str, str], now: float, said: str) -> None:
    """Each fault is named; a time is bounded on both sides, so that a message caught is not sent again for ever."""
    with pytest.raises(RequestError, match=said) as told:
        verify(headers, BODY, [KEY], now)
    assert told.value.code == "wrong_signature"
    assert SECRET[6:] not in str(told.value)


def test_secrets_of_another_form_are_refused_untold() -> None:
    """Too short, too long and no base64."""
    for wrong in ("whsec_c2hvcnQ=", "whsec_" + "A" * 200, "whsec_!!!!", ""):
        with pytest.raises(RequestError, match="24 to 64 bytes") as told:
            key_of(wrong)
        assert not wrong or wrong not in str(told.value)


def test_schedule_grows_to_half_a_day_and_ends_in_three_days() -> None:
    """What docs say: thirteen attempts in some three days, Retry-After kept, 410 and five days of nothing final."""
    plan = Schedule()
    waits = [plan.wait_seconds(attempts, lambda _low, _high: 1.0) for attempts in range(1, 13)]
    assert waits == [5, 20, 80, 320, 1280, 5120, 20480, *[43_200] * 5]
    assert 2.5 < sum(waits) / 86_400 < 3
    assert 4.0 <= plan.wait_seconds(1) <= 6.0
    asked = plan.after_failure(1, Answer(429, retry_after=600.0), 0.0, 10.0)
    assert (asked.due_at, asked.paused_until) == (610.0, 610.0)
    assert plan.after_failure(1, Answer(503, retry_after=1e9), 0.0, 0.0).due_at == 86_400
    assert plan.after_failure(13, Answer(500), 0.0, 10.0).due_at is None
    assert plan.after_failure(1, Answer(410), 0.0, 10.0).disabled == "it answered 410: it is gone"
    assert "took nothing for 5 days" in plan.after_failure(2, Answer(500), 0.0, 5 * 86_400.0).disabled


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("120", 120.0), ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0), ("soon", None), ("", None), ("-5", None)],
)
def test_retry_after_is_seconds_or_a_date(header: str, seconds: float | None) -> None:
    """RFC 9110, 10.2.3; what says nothing asks for nothing."""
    assert retry_after_seconds(header, 10.0) == seconds
