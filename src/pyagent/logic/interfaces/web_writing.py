"""Writes pages as HTML with CSS, and as components of React, Vue and Svelte.

Text is escaped for all four at once: what would begin a tag, an attribute's end, an entity or an expression is written
as an entity, which all of them read as text. A component calls its one callback with the form's values and the button.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Literal

from pyagent.logic.interfaces.elements import Element
from pyagent.logic.interfaces.tags import Tag, page_tag

Flavour = Literal["html", "react", "vue", "svelte"]
_ENTITIES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;", "{": "&#123;", "}": "&#125;"}
)
_REACT_SUBMIT = (
    "  const submit = (event) => {",
    "    event.preventDefault();",
    "    const values = new FormData(event.currentTarget, event.nativeEvent.submitter);",
    "    onAction?.(Object.fromEntries(values));",
    "  };",
)
_VOID = frozenset({"img", "input", "meta"})
_REACT_NAMES = {"class": "className", "for": "htmlFor", "checked": "defaultChecked", "autocomplete": "autoComplete"}
_STYLES: tuple[tuple[str, str], ...] = (
    (".page", "max-width: 60rem; margin: 0 auto; padding: 1rem; font-family: system-ui, sans-serif; line-height: 1.5"),
    (".row", "display: flex; flex-wrap: wrap; gap: 1rem; align-items: end"),
    (".column", "display: flex; flex-direction: column; gap: 0.75rem"),
    (".grid", "display: grid; gap: 1rem"),
    (".field", "display: flex; flex-direction: column; gap: 0.25rem; margin: 0.5rem 0; max-width: 30rem"),
    (".check", "display: flex; gap: 0.5rem; align-items: center; min-height: 2rem"),
    ("input", "font: inherit; min-height: 2rem; min-width: 1.5rem"),
    ("textarea", "font: inherit"),
    ("select", "font: inherit; min-height: 2rem"),
    ("button", "font: inherit; min-height: 2.25rem; padding: 0 1rem"),
    ("summary", "min-height: 2rem; font-weight: bold; cursor: pointer"),
    ("table", "border-collapse: collapse"),
    ("th", "text-align: start; padding: 0.25rem 0.75rem; border-bottom: 2px solid"),
    ("td", "padding: 0.25rem 0.75rem; border-bottom: 1px solid"),
    ("a", "display: inline-block; min-height: 1.5rem"),
    ("img", "max-width: 100%"),
)


def escaped(text: str) -> str:
    """Return a text as HTML, JSX, Vue and Svelte read it as nothing but that text."""
    return text.translate(_ENTITIES)


def write_html(page: Element) -> str:
    """Return a page as a document of HTML."""
    body = page_tag(page)
    lines = [
        "<!DOCTYPE html>",
        f'<html lang="{escaped(page.language)}">',
        "<head>",
        '  <meta charset="utf-8">',
        '  <meta name="viewport" content="width=device-width, initial-scale=1">',
        f"  <title>{escaped(page.text)}</title>",
        "  <style>",
        *(f"    {rule}" for rule in _rules(body)),
        "  </style>",
        "</head>",
        "<body>",
        *_printed(body, "html", 1),
        "</body>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"


def write_react(page: Element) -> str:
    """Return a page as a component of React 19, in JSX."""
    body = page_tag(page)
    body.attributes["lang"] = page.language
    is_form = _is_form(body)
    lines = [
        f"const css = `\n{chr(10).join(_rules(body))}\n`;",
        "",
        f"export default function {component_name(page)}({'{ onAction }' if is_form else ''}) {{",
        *(_REACT_SUBMIT if is_form else ()),
        "  return (",
        "    <>",
        f"      <title>{escaped(page.text)}</title>",
        "      <style>{css}</style>",
        *_printed(body, "react", 3),
        "    </>",
        "  );",
        "}",
    ]
    return "\n".join(lines) + "\n"


def write_vue(page: Element) -> str:
    """Return a page as a single-file component of Vue 3."""
    body = page_tag(page)
    body.attributes["lang"] = page.language
    script = [f"document.title = {script_text(page.text)};"]
    if _is_form(body):
        script += [
            'const emit = defineEmits(["action"]);',
            "",
            "function submit(event) {",
            "  const values = new FormData(event.currentTarget, event.submitter);",
            '  emit("action", Object.fromEntries(values));',
            "}",
        ]
    lines = [
        *("<script setup>", *script, "</script>", "", "<template>"),
        *_printed(body, "vue", 1),
        *("</template>", "", "<style scoped>", *_rules(body), "</style>"),
    ]
    return "\n".join(lines) + "\n"


def write_svelte(page: Element) -> str:
    """Return a page as a component of Svelte 5."""
    body = page_tag(page)
    body.attributes["lang"] = page.language
    script: list[str] = []
    if _is_form(body):
        script = [
            "<script>",
            "  let { onaction } = $props();",
            "",
            "  function submit(event) {",
            "    event.preventDefault();",
            "    const values = new FormData(event.currentTarget, event.submitter);",
            "    onaction?.(Object.fromEntries(values));",
            "  }",
            *("</script>", ""),
        ]
    head = ["<svelte:head>", f"  <title>{escaped(page.text)}</title>", "</svelte:head>", ""]
    lines = [*script, *head, *_printed(body, "svelte", 0), "", "<style>", *_rules(body), "</style>"]
    return "\n".join(lines) + "\n"


def component_name(page: Element) -> str:
    """Return a name for a class or component, by the page's title."""
    words = re.findall(r"[A-Za-z0-9]+", page.text)
    name = "".join(word[:1].upper() + word[1:] for word in words)[:40]
    return f"{name}Page" if name[:1].isalpha() else f"Page{name}"


def script_text(text: str) -> str:
    """Return a string of JavaScript, which no text can end, nor the script around it."""
    return json.dumps(text).replace("<", "\\u003c")


def _is_form(tag: Tag) -> bool:
    return any(isinstance(child, Tag) and child.name == "form" for child in tag.children)


def _rules(tag: Tag) -> list[str]:
    """Return the rules of CSS for what a tag and those below it are."""
    used: set[str] = set()
    left: list[Tag | str] = [tag]
    while left:
        one = left.pop()
        if isinstance(one, Tag):
            used |= {one.name, f".{one.attributes.get('class', '')}"}
            left += one.children
    return [f"{selector} {{ {rule}; }}" for selector, rule in _STYLES if selector in used]


def _printed(tag: Tag, flavour: Flavour, depth: int) -> Iterator[str]:
    indent = "  " * depth
    opening = "".join([tag.name, *(f" {each}" for each in _attributes(tag, flavour))])
    if tag.name in _VOID or (flavour == "react" and not tag.children):
        yield f"{indent}<{opening}{'' if flavour == 'html' else ' /'}>"
    elif all(isinstance(child, str) for child in tag.children):
        text = "".join(escaped(child) for child in tag.children if isinstance(child, str))
        yield f"{indent}<{opening}>{text}</{tag.name}>"
    else:
        yield f"{indent}<{opening}>"
        for child in tag.children:
            if isinstance(child, Tag):
                yield from _printed(child, flavour, depth + 1)
        yield f"{indent}</{tag.name}>"


def _attributes(tag: Tag, flavour: Flavour) -> Iterator[str]:
    if tag.name == "form":
        yield {
            "html": 'method="post"',
            "react": "onSubmit={submit}",
            "vue": '@submit.prevent="submit"',
            "svelte": "onsubmit={submit}",
        }[flavour]
    for name, value in _named(tag, flavour).items():
        if flavour == "react" and name == "style":
            yield f"style={{{{ {_style_object(str(value))} }}}}"
        else:
            yield name if value is True else f'{name}="{escaped(str(value))}"'


def _named(tag: Tag, flavour: Flavour) -> dict[str, str | bool]:
    """Return a tag's attributes as the flavour names them; React tells a select's choice by the select."""
    if flavour != "react":
        return tag.attributes
    named = {_REACT_NAMES.get(name, name): value for name, value in tag.attributes.items() if name != "selected"}
    if tag.name in {"input", "textarea"} and named.get("type") != "radio" and "value" in named:
        named["defaultValue"] = named.pop("value")
    chosen = [
        child.attributes["value"] for child in tag.children if isinstance(child, Tag) and "selected" in child.attributes
    ]
    if tag.name == "select" and chosen:
        named["defaultValue"] = chosen[0]
    if tag.name == "textarea" and tag.children:
        named["defaultValue"] = "".join(child for child in tag.children if isinstance(child, str))
        tag.children = []
    return named


def _style_object(style: str) -> str:
    """Return rules of CSS as the object that React takes."""
    pairs = [rule.partition(": ") for rule in style.split("; ")]
    return ", ".join(f"{_camel(name)}: {json.dumps(value)}" for name, _, value in pairs)


def _camel(name: str) -> str:
    return re.sub(r"-(\w)", lambda match: match[1].upper(), name)
