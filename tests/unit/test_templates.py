"""Chat templates are code from strangers: what they may do, and how they are stopped."""

from __future__ import annotations

import time

import pytest
from support.chat_templates import byte_level_tokenizer

from pyagent.core.errors import ModelError, RequestError
from pyagent.core.messages import FunctionCall, Message, ToolCall
from pyagent.infrastructure.engine.tokens import template_sandbox
from pyagent.infrastructure.engine.tokens.template_sandbox import MAX_SECONDS
from pyagent.infrastructure.engine.tokens.templates import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]
GROW = "{{% set ns = namespace(s='aaaaaaaaaa', l=[1], d=dict(a=1)) %}}{{% for i in range(60) %}}{}{{% endfor %}}"
BIG = "{% set ns = namespace(s='a', l=[]) %}{% for i in range(23) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"

ATTACKS = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "times": "{{ 'a' * 1000000000 }}",
    "times list": "{{ [1] * 1000000000 }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "format": "{{ '{:>1000000000}'.format(1) }}",
    "format_map": "{{ '{a:>1000000000}'.format_map({'a': 1}) }}",
    "center": "{{ 'a'.center(1000000000) }}",
    "center filter": "{{ 'a' | center(1000000000) }}",
    "bytes": "{{ 'a'.encode().center(4000000000) }}",
    "to_bytes": "{{ (1).to_bytes(4000000000, 'big') }}",
    "power": "{{ 9 ** 9 ** 9 }}",
    "product": "{% set ns = namespace(n=2) %}"
    "{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}{{ ns.n }}",
    "tilde": GROW.format("{% set ns.s = ns.s ~ ns.s %}"),
    "plus": GROW.format("{% set ns.s = ns.s + ns.s %}"),
    "macro": "{% macro m(s) %}{{ s }}{{ s }}{% endmacro %}" + GROW.format("{% set ns.s = m(ns.s) %}"),
    "set block": GROW.format("{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}"),
    "replace": GROW.format("{% set ns.s = ns.s.replace('a', 'aaaaaaaaaaa') %}"),
    "replace filter": GROW.format("{% set ns.s = ns.s | replace('a', 'aaaaaaaaaaa') %}"),
    "join": GROW.format("{% set ns.s = ns.s.join(['a', 'b', 'c', 'd'] + [ns.s]) %}"),
    "join filter": GROW.format("{% set ns.s = range(9999) | join(ns.s) %}"),
    "lists in lists": GROW.format("{% set ns.l = [ns.l, ns.l] %}") + "{{ ns.l }}",
    "tuples in tuples": GROW.format("{% set ns.l = (ns.l, ns.l) %}") + "{{ {ns.l: 1} }}",
    "lists plus lists": GROW.format("{% set ns.l = ns.l + ns.l %}"),
    "mappings in mappings": GROW.format("{% set ns.d = {'a': ns.d, 'b': ns.d} %}") + "{{ ns.d | tojson }}",
    "dicts in dicts": GROW.format("{% set ns.d = dict(a=ns.d, b=ns.d) %}"),
    "default list": "{% set b = range(9999) | list %}{{ range(9999) | map(attribute='x', default=b) | list }}",
    "sort of large": BIG + "{{ range(9999) | map(attribute='x', default=ns.s) | sort | length }}",
    "many large": BIG + "{% for i in range(9999) %}{% set ns.l = ns.l + [ns.s ~ i] %}{% endfor %}",
    "namespace in itself": "{% set ns = namespace(a=1) %}{% set ns.a = ns %}{{ ns }}",
    "range": "{% for i in range(1000000000) %}{% endfor %}",
    "output": "{% for a in range(9999) %}{% for b in range(9999) %}xxxxxxxxxxxxxx{% endfor %}{% endfor %}",
    "macro in itself": "{% macro m(s) %}{{ m(s) }}{% endmacro %}{{ m(1) }}",
}
ENDLESS = {
    "loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}"
    "{% endfor %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }}",
    "in swallowed errors": "{% for a in range(9999) %}{% for b in range(9999) %}"
    "{% set x = messages[0]['a' | int] %}{% endfor %}{% endfor %}",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_template_that_grows_is_stopped(name: str) -> None:
    """Whatever a template multiplies, it is stopped, as the model's fault, before it takes time or memory."""
    start = time.perf_counter()
    with pytest.raises(ModelError, match="chat template"):
        ChatTemplate(ATTACKS[name], {}, "m").render(MESSAGES)
    assert time.perf_counter() - start < 10 * MAX_SECONDS


@pytest.mark.parametrize("path", ["raise_exception.__globals__", "messages.__class__", "messages.append", "''.mro"])
def test_template_sees_no_insides(path: str) -> None:
    """Attributes that lead out of the sandbox, or change the conversation, are not there."""
    with pytest.raises((ModelError, RequestError)):
        ChatTemplate(f"{{{{ {path}(1) }}}}", {}, "m").render(MESSAGES)


@pytest.mark.parametrize("name", ENDLESS)
def test_template_that_never_ends_is_stopped_in_time(name: str) -> None:
    """A template without an end is stopped after about two seconds."""
    start = time.perf_counter()
    with pytest.raises(ModelError, match="ran for more than 2 s"):
        ChatTemplate(ENDLESS[name], {}, "m").render(MESSAGES)
    assert time.perf_counter() - start < 10 * MAX_SECONDS


def test_template_of_300_kilobytes_is_refused() -> None:
    """A template larger than any real one is refused before it is compiled."""
    with pytest.raises(ModelError, match="a chat template of 300000 characters; the limit is 262144"):
        ChatTemplate("a" * 300_000, {}, "m")


@pytest.mark.parametrize("source", ["{% if %}", "{{ 1 | nothing }}", "{% for x in y %}", "{{ " + "(" * 5000])
def test_template_that_cannot_be_compiled_is_the_models_fault(source: str) -> None:
    """A template that is no template raises `ModelError` naming the model."""
    with pytest.raises(ModelError, match=r"m\.gguf: the chat template is not valid"):
        ChatTemplate(source, {}, "m.gguf")


def test_raise_exception_is_the_requests_fault() -> None:
    """A template that refuses a conversation does so in its own words, as a fault of the request."""
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {}, "m")
    with pytest.raises(RequestError, match="refuses this conversation: roles must alternate"):
        template.render(MESSAGES)
    with pytest.raises(RequestError, match="has no attribute 'foo'"):
        ChatTemplate("{{ messages[0].foo.bar }}", {}, "m").render(MESSAGES)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{% for m in messages %}{{ m.role ~ ':' ~ m['content'] | trim }}{% endfor %}", "<s>user:hi"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "hi"}]'),
        ("{{ {'b': 1, 'a': '<é>'} | tojson(indent=1, sort_keys=true) }}", '{\n "a": "<é>",\n "b": 1\n}'),
        ("{{ {'b': 1} | tojson(separators=(',', ':')) }}", '{"b":1}'),
        ("{{ 'a</think>b'.split('</think>')[-1] }}{{ 'x'.replace('x', 'yy') }}{{ ','.join(['1', '2']) }}", "byy1,2"),
        ("{{ [1, 2] | join('-') }} {{ 'a\nb' | indent(2, true) }} {{ 3.14159 | round(2) }}", "1-2   a\n  b 3.14"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}", "a2b1"),
        ("{% for k, v in {'b': 1}.items() %}{{ k }}{{ v }}{% endfor %}{{ messages[1:] }}", "b1[]"),
        (
            "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}{{ tools is none }}",
            "01True",
        ),
        ("{% if add_generation_prompt %}{{- '  go  ' | upper }}{% endif %}", "  GO  "),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(1) ~ m('a') }}{{ none }}{{ missing }}", "[1][a]None"),
    ],
)
def test_template_may_do_what_real_ones_do(source: str, text: str) -> None:
    """What the templates of known models use works as in transformers."""
    assert ChatTemplate(source, {"bos_token": "<s>"}, "m").render(MESSAGES) == text


def test_template_renders_long_conversations() -> None:
    """A thousand messages of four kilobytes are far inside the bounds."""
    source = (
        "{% set ns = namespace(s='') %}{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "word " * 800}] * 1000
    assert len(ChatTemplate(source, {}, "m").render(messages)) == 1000 * (4000 + 6)


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        ("{{ m.thinking }}|{{ m.content }}", "hm|I look."),
        ("{{ m['reasoning'] }}|{{ m.content }}", "hm|I look."),
        ("{{ m.thinking }}{{ m.reasoning_content }}|{{ m.content }}", "hm|I look."),
        ("{% if m.thinking and m.content %}{{ raise_exception('both') }}{% endif %}{{ m.thinking }}|", "hm\nI look.|"),
    ],
)
def test_thought_is_told_by_the_name_that_the_template_reads(shown: str, told: str) -> None:
    """What led to a call is `thinking` for gpt-oss, which takes it beside no content: that is told with it."""
    tokenizer = byte_level_tokenizer(
        f"{{% for m in messages %}}{{% if m.tool_calls %}}{shown}{{% endif %}}{{% endfor %}}"
    )
    call = ToolCall(id="a", function=FunctionCall("f"))
    said = Message("assistant", "I look.", tool_calls=[call], reasoning_content="hm")
    assert tokenizer.render_chat([Message("user", "hi"), said]) == told


def test_renderings_within_another_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is asked of a request's template to learn what it writes has one clock together."""
    template = ChatTemplate("{% for a in range(3) %}{{ a }}{% endfor %}", {}, "m")
    monkeypatch.setattr(template_sandbox, "MAX_SECONDS", -1.0)
    with template_sandbox.spending():
        monkeypatch.setattr(template_sandbox, "MAX_SECONDS", 60.0)
        with pytest.raises(ModelError, match="ran for more than"):
            template.render([{"role": "user", "content": "a"}])
    assert template.render([{"role": "user", "content": "a"}]) == "012"
