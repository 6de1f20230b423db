"""Links as tables of pyagent.toml: what each key means, and how each mistake is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyagent.cli.config import describe
from pyagent.core.chain.conditions import Condition
from pyagent.core.chain.settings import LinkSettings, Price, Rate, read_links, written
from pyagent.core.config import load_settings
from pyagent.core.errors import ConfigError
from pyagent.core.messages import (
    ChatRequest,
    FunctionDefinition,
    ImagePart,
    ImageUrl,
    Message,
    Origin,
    ResponseFormat,
    SamplingParams,
    TextPart,
    Tool,
)
from pyagent.core.token_estimate import estimated_request_tokens

CHAIN = """
chain = [
  { use = "lmstudio", when = "not private" },
  { use = "openai:http://gpu-a:8000/v1", weight = 2, timeout_seconds = 20, concurrency = "auto", key = "env:GPU" },
  { use = "openai:http://gpu-b:8000/v1", weight = 1, rate = ["60/min", "10/s burst 20", "500/h window per client"] },
  { use = "github", when = ["tools or vision", "context > 8_000"], price = { input = 0.15, output = 0.6 } },
  { use = "ollama:llama3.2", hedge = "p95", context = 8192, concurrency = 4, continues = true, batch_ms = 5 },
  { use = "openai:http://gate:1/v1", headers = { X-Provider = "openai", x-secret = "env:GPU" } },
  "native",
]
[rules]
deadline_seconds = 60
usd_per_request = 0.05
"""


def loaded(tmp_path: Path, text: str):
    file = tmp_path / "pyagent.toml"
    file.write_text(text)
    return load_settings(file)


def test_links_read_as_they_are_written(tmp_path: Path) -> None:
    """Each key of a link's table is what it says, and a text is a link without any."""
    found = loaded(tmp_path, CHAIN).settings
    first, weighted, rated, priced, hedged, gate, plain = found.links
    assert plain == LinkSettings(use="native")
    assert [condition.text for condition in first.when] == ["not private"]
    assert (weighted.weight, weighted.timeout_seconds, weighted.concurrency, weighted.key) == (2, 20, "auto", "env:GPU")
    assert gate.headers == {"x-provider": "openai", "x-secret": "env:GPU"}
    assert [(rate.count, rate.seconds, rate.burst, rate.kind, rate.is_per_client) for rate in rated.rates] == [
        (60, 60, 60, "bucket", False),
        (10, 1, 20, "bucket", False),
        (500, 3600, 500, "window", True),
    ]
    assert priced.price == Price(input=0.15, output=0.6)
    assert (hedged.hedge_percentile, hedged.context, hedged.concurrency, hedged.continues) == (0.95, 8192, 4, True)
    assert hedged.batch_ms == 5
    assert (found.rules.deadline_seconds, found.rules.usd_per_request) == (60, 0.05)


def test_links_are_shown_as_they_are_written(tmp_path: Path) -> None:
    """`pyagent config show` prints a table that reads back as the same link."""
    found = loaded(tmp_path, CHAIN)
    shown, _ = describe(found)["chain"]
    assert read_links(json.loads(json.dumps(shown))) == found.settings.chain


def test_secrets_written_into_headers_are_not_shown(tmp_path: Path) -> None:
    """`pyagent config show` tells where a secret is found, and strikes out one that stands in the file itself."""
    headers = "{ x-provider = 'openai', x-portkey-api-key = 'pk-1234', x-secret = 'env:GPU' }"
    shown, _ = describe(loaded(tmp_path, f"chain = [{{ use = 'openai:http://gate:1/v1', headers = {headers} }}]"))[
        "chain"
    ]
    assert "pk-1234" not in json.dumps(shown)
    assert '"x-portkey-api-key": "[redacted]"' in json.dumps(shown)
    assert '"x-provider": "openai", ' in json.dumps(shown)
    assert '"x-secret": "env:GPU"' in json.dumps(shown)


def test_chain_of_tables_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A variable holds tables as JSON."""
    monkeypatch.setenv("PYAGENT_CHAIN", '[{"use": "native", "concurrency": 2}, "ollama"]')
    found = loaded(tmp_path, "").settings
    assert [link.use for link in found.links] == ["native", "ollama"]
    assert found.links[0].concurrency == 2


@pytest.mark.parametrize(
    ("link", "fault"),
    [
        ("3", "a table with `use` as link 1, got int"),
        ("{ wieght = 2 }", "expected `use` in link 1"),
        ("{ use = 'native', wieght = 2 }", "expected 'weight' in link 1 (native), got 'wieght'"),
        ("{ use = 'native', zzz = 2 }", "expected one of use, weight, when"),
        (
            "{ use = 'native', weight = 0 }",
            "expected a number above 0, at most 1000000000, as weight of link 1 (native)",
        ),
        ("{ use = ':x' }", "expected SCHEME or SCHEME:TARGET, got ':x', as use of link 1"),
        ("{ use = 'native', when = ['tool'] }", "expected 'tools', got 'tool', as when of link 1"),
        ("{ use = 'native', when = ['context > many'] }", "`context > N`"),
        ("{ use = 'native', when = 3 }", "a list of conditions"),
        ("{ use = 'native', rate = '60/fortnight' }", 'a rate such as "60/min"'),
        ("{ use = 'native', rate = '0/min' }", 'a rate such as "60/min"'),
        ("{ use = 'native', rate = '9/min burst 3 window' }", "either a burst or a window"),
        (
            "{ use = 'native', concurrency = 'some' }",
            "expected a whole number from 1 to 2147483647, or 'auto', as concurrency of link 1",
        ),
        ("{ use = 'native', price = { inptu = 1 } }", "expected input and output, USD for a million tokens"),
        (
            "{ use = 'native', price = { input = -1 } }",
            "expected a number above 0, at most 1000000000, as price of link 1",
        ),
        ("{ use = 'native', hedge = 'p20' }", "seconds or a percentile"),
        (
            "{ use = 'native', timeout_seconds = 'soon' }",
            "expected a number above 0, at most 1000000000, as timeout_seconds of link 1",
        ),
        ("{ use = 'openai:http://h/v1', key = 'sk-secret' }", "never the key itself, as key of link 1"),
        ("{ use = 'native', key = 'env:KEY' }", "a link with a URL for the key of link 1"),
        ("{ use = 'github', headers = { x-a = 'b' } }", "a link with a URL for the headers of link 1"),
        ("{ use = 'openai:http://h/v1', headers = 'x-a: b' }", "expected a table, as headers of link 1"),
        ("{ use = 'openai:http://h/v1', headers = { 'x a' = 'b' } }", "letters, digits and dashes, got 'x a'"),
        ("{ use = 'openai:http://h/v1', headers = { x-a = '1', X-A = '2' } }", "each header's name once"),
        ("{ use = 'openai:http://h/v1', headers = { Authorization = 'x' } }", "a key stands in `key`"),
        ("{ use = 'openai:http://h/v1', headers = { Host = 'x' } }", "that are not set anyway, got 'Host'"),
        ('{ use = "openai:http://h/v1", headers = { x-a = "b\\r\\nx-c: d" } }', "a line of printable ASCII"),
        ("{ use = 'openai:http://h/v1', headers = { x-a = 'env:a b' } }", "expected env:NAME or file:PATH for 'x-a'"),
    ],
)
def test_mistake_in_a_link_is_one_sentence(tmp_path: Path, link: str, fault: str) -> None:
    """A wrong link is told with its number, its entry, its key and what is expected."""
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, f"chain = [{link}]")
    assert caught.value.key == "chain"
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


def holds(text: str, **fields: object) -> bool:
    return Condition.parse(text).holds(ChatRequest(**{"messages": [Message("user", "hi")], **fields}))  # type: ignore[arg-type]


def test_conditions_hold_for_what_they_name() -> None:
    """Each word is about one thing of a request; `not` and `or` are as in English."""
    tool = Tool(FunctionDefinition("f"))
    picture = Message("user", [TextPart("what?"), ImagePart(ImageUrl("data:,"))])
    assert holds("tools", tools=[tool])
    assert not holds("tools")
    assert holds("not tools")
    assert holds("vision", messages=[picture])
    assert holds("schema", response_format=ResponseFormat("json_object"))
    assert not holds("schema", response_format=ResponseFormat("text"))
    assert holds("private or tools", private=True)
    assert holds("session", session="s")
    assert holds("logprobs", sampling=SamplingParams(top_logprobs=1))
    assert holds("completion", messages=[], prompt="x")
    assert holds("agent = math", origin=Origin(agent="math"))
    assert not holds("client = a", origin=Origin(client="b"))
    assert holds("class = batch", request_class="batch")
    assert holds("max_tokens <= 100", sampling=SamplingParams(max_tokens=100))
    assert not holds("max_tokens <= 100")


def test_context_condition_counts_about_the_tokens() -> None:
    """A prompt of English is estimated within a third of four bytes a token; tools and images count."""
    text = "the quick brown fox jumps over the lazy dog " * 200
    plain = ChatRequest(messages=[Message("user", text)])
    assert len(text) / 4 <= estimated_request_tokens(plain) <= len(text) / 3
    assert holds("context > 2000", messages=plain.messages)
    assert not holds("context > 3000", messages=plain.messages)
    picture = ChatRequest(messages=[Message("user", [ImagePart(ImageUrl("data:,"))])])
    assert estimated_request_tokens(picture) > 500


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 10_000), st.sampled_from([">", "<", ">=", "<="]))
def test_comparisons_are_arithmetic(number: int, bound: int, operator: str) -> None:
    """`max_tokens OP N` is true when the numbers say so, and `not` turns it round."""
    request = {"sampling": SamplingParams(max_tokens=number or 1)}
    expected = eval(f"{number or 1} {operator} {bound}")
    assert holds(f"max_tokens {operator} {bound}", **request) == expected
    assert holds(f"not max_tokens {operator} {bound}", **request) != expected


@settings(deadline=None)
@given(
    st.builds(
        Rate,
        count=st.integers(1, 10**6),
        seconds=st.sampled_from([1.0, 60.0, 3600.0, 86400.0]),
        is_per_client=st.booleans(),
    )
)
def test_every_rate_can_be_written(rate: Rate) -> None:
    """What a rate's text says reads back as itself."""
    unit = {1.0: "s", 60.0: "min", 3600.0: "h", 86400.0: "day"}[rate.seconds]
    text = f"{rate.count}/{unit}" + (" per client" if rate.is_per_client else "")
    (link,) = read_links([{"use": "a", "rate": text}])
    assert isinstance(link, LinkSettings)
    assert written(link)["rate"] == [text]
    assert (link.rates[0].count, link.rates[0].seconds) == (rate.count, rate.seconds)
