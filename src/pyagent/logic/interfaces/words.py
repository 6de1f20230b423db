"""A description in words as a tree of elements, by rules: what it names becomes what it is called, in its order.

`a login form with email, password and a remember me box` needs no model. What a description names is never left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from pyagent.logic.interfaces.elements import Element, InputType, Kind

_WITH = re.compile(
    r"\b(?:with|having|containing|that has|which has|that contains|including|consisting of|:)\s", re.IGNORECASE
)
_ASKED = re.compile(
    r"^\s*(?:please\s+)?(?:can you\s+|could you\s+)?"
    r"(?:make|create|build|generate|write|design|draw|code|produce|give me|show|i need|i want|we need)"
    r"(?:\s+me)?\s+",
    re.IGNORECASE,
)
_FRAMEWORK_WORDS = re.compile(
    r"\b(?:in|using|for|as|with)\s+(?:plain\s+)?(?:html(?:\s*(?:/|and|&)\s*css)?|css|react(?:\.js)?|jsx|vue(?:\.js)?(?:\s*3)?|svelte|tkinter|tk|pyside6?|"
    r"pyqt\d?|qt|textual|flutter|dart|swift\s*ui)\b",
    re.IGNORECASE,
)
_ARTICLE = re.compile(
    r"^(?:(?:a|an|the|some|one|its?|your|their|of|for|and|also|then|plus|two|three)\s+)+", re.IGNORECASE
)
_PAGE_WORDS = re.compile(
    r"\b(?:web ?page|page|form|screen|window|dialog|view|app|interface|gui|ui|site|panel|component|layout)\b",
    re.IGNORECASE,
)
_SPLIT = re.compile(
    r"\s*(?:,\s*(?:and\s+|plus\s+)?|;\s*|\.\s+|\band\b|\bplus\b|\bas well as\b|\bfollowed by\b|\n+)\s*", re.IGNORECASE
)
_KEPT_PAIRS = re.compile(
    r"\b(terms|name|search|pros|rules|questions|drag|privacy) and "
    r"(conditions|surname|filter|cons|regulations|answers|drop|cookies)\b",
    re.IGNORECASE,
)
_PAIRED = re.compile(r"\b(\w+) and (\w+) (button|link|checkbox|toggle|image|tab)(?:es|s)\b", re.IGNORECASE)
"""`save and cancel buttons` are two buttons."""
_OPTIONS = re.compile(
    r"\(([^()]*)\)|\b(?:with (?:the )?(?:options?|choices|columns?|items?|values)|options?|columns?)\s*:?\s+(.+)$",
    re.IGNORECASE,
)
_REQUIRED = re.compile(r"\b(?:required|mandatory)\b", re.IGNORECASE)
_FLAGS = re.compile(
    r"\b(?:required|mandatory|optional|checked|ticked|labell?ed|called|named|titled|saying|(?:that|which) says)\b",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"[\"“']([^\"”']{1,200})[\"”']")
_KINDS: tuple[tuple[Kind, str], ...] = (
    ("checkbox", r"check ?box(?:es)?|tick ?box|tick|toggle|switch|box"),
    ("radio", r"radio(?: buttons?| group)?|choice(?: of)?"),
    ("select", r"drop ?-?down(?: (?:list|menu))?|select(?:or)?(?: box)?|combo ?box|picker|menu"),
    (
        "area",
        r"text ?area|multi-?line(?: text)?(?: field| input)?|(?:message|comments?)(?: box| field)?|description|notes?",
    ),
    ("progress", r"progress(?: bar)?"),
    ("table", r"table|data grid|spreadsheet"),
    ("list", r"(?:bulleted |bullet )?list"),
    ("image", r"image|picture|photo|logo|icon|avatar|illustration|banner"),
    ("link", r"(?:hyper)?link"),
    ("heading", r"heading|headline|title|header"),
    ("tabs", r"tabs?"),
    ("text", r"paragraph|text|sentence|intro(?:duction)?|footer|caption"),
    ("button", r"button"),
)
_TYPES: tuple[tuple[InputType, str], ...] = (
    ("email", r"e-?mails?(?: address)?"),
    ("password", r"passwords?|passphrase"),
    ("tel", r"(?:mobile |tele)?phone(?: number)?|mobile"),
    ("date", r"(?:\w+ )?dates?(?: of birth)?|birthday|deadline"),
    ("url", r"url|web ?site|homepage|web address"),
    ("search", r"search(?: (?:box|field|bar|term))?"),
    ("number", r"(?:\w+ )?(?:number|age|quantity|amount|price|count|year)(?: of \w+)?"),
)
_BOXES = re.compile(
    r"remember me|(?:i )?(?:agree|accept)\b.*|terms(?: and conditions)?|newsletter(?: sign-?up)?|subscribe|opt[- ]in"
    r"|keep me (?:signed|logged) in",
    re.IGNORECASE,
)
_NOUNS = re.compile(r"\b(?:text |input |entry )?(?:fields?|inputs?|entries|entry|boxes)\b", re.IGNORECASE)
_PRESETS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    (r"log ?-?in|sign ?-?in", "Log in", ("email", "password"), "Log in"),
    (r"sign ?-?up|regist(?:er|ration)|create an? account", "Sign up", ("name", "email", "password"), "Create account"),
    (r"contact", "Contact", ("name", "email", "message"), "Send"),
    (r"feedback|survey", "Feedback", ("name", "message"), "Send"),
    (r"check ?-?out|payment", "Checkout", ("name", "address", "card number"), "Pay"),
    (r"search", "Search", ("search",), "Search"),
    (r"settings|preferences|profile", "Settings", ("name", "email"), "Save"),
    (r"newsletter|subscri\w+", "Newsletter", ("email",), "Subscribe"),
    (r"book(?:ing)?|reserv\w+|appointment", "Booking", ("name", "date"), "Book"),
    (r"(?:to-?do|task)s?", "Tasks", ("new task",), "Add"),
)
_ASKS = frozenset({"input", "area", "select", "radio", "tabs", "table"})
"""A description that names one of these says itself what is asked for."""
_MAX_CHARS = 4_000
_MAX_ITEMS = 60


class Described(msgspec.Struct, frozen=True):
    """A page by a description, and whether the description names anything that stands in it."""

    page: Element
    is_named: bool


def page_from_words(text: str) -> Described:
    """Return the page that a description tells of; it is mended later."""
    head, items = _parts(" ".join(text[:_MAX_CHARS].split()))
    preset = next((each for each in _PRESETS if re.search(rf"\b(?:{each[0]})\b", head, re.IGNORECASE)), None)
    named = [
        element
        for item in items[:_MAX_ITEMS]
        if (element := _element(item, is_form=_is_form(head, preset is not None))) is not None
    ]
    is_named = any(each.kind != "text" for each in named) or preset is not None
    if preset is not None and not any(each.kind in _ASKS for each in named):
        named = [each for item in preset[2] if (each := _element(item, is_form=True)) is not None] + named
    title = _title(head, preset[1] if preset else "")
    needs_button = any(each.kind in {"input", "area", "select", "radio"} for each in named)
    if needs_button and not any(each.kind == "button" for each in named):
        named.append(Element(kind="button", text=preset[3] if preset else "Send"))
    heading = [] if any(each.kind == "heading" for each in named) else [Element(kind="heading", text=title, level=1)]
    return Described(Element(kind="page", text=title, children=(*heading, *_rows(named))), is_named)


def _parts(text: str) -> tuple[str, list[str]]:
    """Return what a description is about, and the things that it lists."""
    text = _FRAMEWORK_WORDS.sub(" ", _ASKED.sub("", text)).strip(" .!")
    found = _WITH.search(text)
    if found is None:
        return text, [] if _PAGE_WORDS.search(text) else list(_split(text))
    return text[: found.start()], list(_split(text[found.end() :]))


def _split(text: str) -> Iterator[str]:
    """Yield the things of a list; what stands in brackets or quotes stays together."""
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\ue000{len(kept) - 1}\ue001"

    text = _PAIRED.sub(r"\1 \3, \2 \3", text)
    masked = _KEPT_PAIRS.sub(keep, _QUOTED.sub(keep, re.sub(r"\([^()]*\)", keep, text)))
    masked = re.sub(
        r"\b(?:with (?:the )?)?(?:options|choices|columns) .+?(?=;|\.\s|,? and (?:a|an|the) |$)",
        keep,
        masked,
        flags=re.IGNORECASE,
    )
    for part in _SPLIT.split(masked):
        whole = part
        while "\ue000" in whole:
            whole = re.sub("\ue000(\\d+)\ue001", lambda match: kept[int(match[1])], whole)
        if whole.strip(" ."):
            yield whole.strip(" .")


def _element(item: str, *, is_form: bool) -> Element | None:
    """Return what one thing of a list is."""
    found = _OPTIONS.search(item)
    options = (
        tuple(
            _capital(each) for each in re.split(r"\s*(?:,|/|;|\bor\b|\band\b)\s*", found[1] or found[2]) if each.strip()
        )
        if found
        else ()
    )
    plain = item[: found.start()] + item[found.end() :] if found else item
    quoted = _QUOTED.search(plain)
    words = _ARTICLE.sub("", _FLAGS.sub(" ", _QUOTED.sub(" ", plain)).strip()).strip()
    required = bool(_REQUIRED.search(item))
    if _BOXES.fullmatch(re.sub(r"\s*(?:check ?)?box$", "", words, flags=re.IGNORECASE)):
        label = re.sub(r"\s*(?:check ?)?box$", "", words, flags=re.IGNORECASE)
        return Element(kind="checkbox", text=_capital(label), required=required, checked="checked" in item.lower())
    for kind, pattern in _KINDS:
        if re.search(rf"\b(?:{pattern})\b", words, re.IGNORECASE):
            named = _of_kind(kind, pattern, words, quoted[1] if quoted else "", options)
            return msgspec.structs.replace(named, required=required)
    label = quoted[1] if quoted else _capital(_NOUNS.sub(" ", words))
    type_words = " ".join(_NOUNS.sub(" ", words).split())
    for name, pattern in _TYPES:
        if re.fullmatch(rf"(?:\w+ )?(?:{pattern})", type_words, re.IGNORECASE):
            return Element(kind="input", type=name, text=label or name.capitalize(), required=required)
    if options:
        return Element(kind="select", text=label, options=options, required=required)
    if not label:
        return None
    return Element(kind="input" if is_form or _NOUNS.search(words) else "text", text=label, required=required)


def _of_kind(kind: Kind, pattern: str, words: str, quoted: str, options: tuple[str, ...]) -> Element:
    rest = re.sub(rf"\s*\b(?:{pattern})\b\s*", " ", words, count=1, flags=re.IGNORECASE)
    rest = _ARTICLE.sub("", re.sub(r"^(?:to|of|for|about|labell?ed)\s+", "", rest.strip(), flags=re.IGNORECASE)).strip()
    label = quoted or _capital(rest or words)
    match kind:
        case "table":
            return Element(kind=kind, text=label if rest or quoted else "", head=options or ("Name", "Value"))
        case "list":
            return Element(kind=kind, options=options or (label,))
        case "tabs":
            titles = options or (label,)
            return Element(kind=kind, children=tuple(Element(kind="tab", text=title) for title in titles))
        case "heading":
            return Element(kind=kind, text=label, level=1)
        case "select" | "radio":
            return Element(kind=kind, text=label, options=options or ("Yes", "No"))
        case _:
            return Element(kind=kind, text=label)


def _is_form(head: str, has_preset: bool) -> bool:
    return has_preset or re.search(r"\b(?:form|dialog|window|settings|screen)\b", head, re.IGNORECASE) is not None


def _title(head: str, preset: str) -> str:
    if quoted := _QUOTED.search(head):
        return quoted[1]
    words = _ARTICLE.sub("", _PAGE_WORDS.sub(" ", head).strip())
    words = re.sub(r"^(?:simple|small|nice|basic|accessible|modern|short|little)\s+", "", words, flags=re.IGNORECASE)
    words = re.sub(r"^(?:to|of|for|about)\s+", "", " ".join(words.split()), flags=re.IGNORECASE)
    return preset or _capital(words[:80]) or "Page"


def _rows(elements: list[Element]) -> Iterator[Element]:
    """Yield elements with buttons that follow each other in a row."""
    buttons: list[Element] = []
    for element in [*elements, None]:
        if element is not None and element.kind == "button":
            buttons.append(element)
            continue
        if len(buttons) > 1:
            yield Element(kind="row", children=tuple(buttons))
        else:
            yield from buttons
        buttons = []
        if element is not None:
            yield element


def _capital(text: str) -> str:
    stripped = " ".join(text.split()).strip(" .,;:")
    return stripped[:1].upper() + stripped[1:]
