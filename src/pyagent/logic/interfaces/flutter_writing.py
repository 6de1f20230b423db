"""Writes a page as a widget of Flutter, in Dart. A button calls `onAction` with its id and all values."""

from __future__ import annotations

from collections.abc import Sequence

from pyagent.logic.interfaces.bracketed import Code, Group, after, printed
from pyagent.logic.interfaces.elements import INPUTS, Element, InputType, walk
from pyagent.logic.interfaces.web_writing import component_name

KEYBOARDS: dict[InputType, str] = {
    "email": "emailAddress",
    "url": "url",
    "tel": "phone",
    "number": "number",
    "date": "datetime",
}
HINTS = {
    "name": "name",
    "given-name": "givenName",
    "family-name": "familyName",
    "username": "username",
    "email": "email",
    "new-password": "newPassword",
    "current-password": "password",
    "one-time-code": "oneTimeCode",
    "tel": "telephoneNumber",
    "street-address": "fullStreetAddress",
    "postal-code": "postalCode",
    "address-level2": "addressCity",
    "country-name": "countryName",
    "organization": "organizationName",
    "bday": "birthday",
    "cc-number": "creditCardNumber",
    "cc-exp": "creditCardExpirationDate",
    "cc-csc": "creditCardSecurityCode",
}
_SIZES = (32, 26, 22, 19, 17, 15)
_START = "crossAxisAlignment: CrossAxisAlignment.start"


def write_flutter(page: Element) -> str:
    """Return a page as a library of Dart."""
    name = component_name(page)
    values = Group("{", [f"{dart(each.id)}: {_initial(each)}" for each in walk(page) if each.kind in INPUTS], "}")
    body = _column(page)
    if page.color:
        style = f"style: const TextStyle(color: {_color(page.color)})"
        body = Group("DefaultTextStyle.merge(", [style, after("child: ", body)])
    scroll = Group("SingleChildScrollView(", ["padding: const EdgeInsets.all(16)", after("child: ", body)])
    colors = [f"backgroundColor: const {_color(page.background)}"] if page.background else []
    shown = _call("Scaffold", page, [*colors, after("body: ", scroll)])
    title = [f"title: {dart(page.text)}", "color: const Color(0xFF000000)", after("child: ", shown)]
    locale = [
        "context: context",
        f"locale: const Locale({dart(page.language)})",
        after("child: ", Group("Title(", title)),
    ]
    body = Group("Localizations.override(", locale)
    return _FILE.format(name=name, values=printed(values, 1), body=printed(body, 2))


_FILE = """import 'package:flutter/material.dart';

class {name} extends StatefulWidget {{
  const {name}({{super.key, required this.onAction}});

  final void Function(String id, Map<String, Object?> values) onAction;

  @override
  State<{name}> createState() => _{name}State();
}}

class _{name}State extends State<{name}> {{
  final Map<String, Object?> values = {values};

  @override
  Widget build(BuildContext context) {{
    return {body};
  }}
}}
"""


def dart(text: str) -> str:
    """Return a string of Dart that computes nothing."""
    for sign in ("\\", "'", "$"):
        text = text.replace(sign, f"\\{sign}")
    return f"'{text}'"


def _initial(element: Element) -> str:
    if element.kind == "checkbox":
        return "true" if element.checked else "false"
    return "null" if element.kind in {"select", "radio"} and not element.value else dart(element.value)


def _call(name: str, element: Element, arguments: Sequence[Code]) -> Group:
    key = [f"key: const Key({dart(element.id)})"] if element.id else []
    return Group(f"{name}(", [*key, *arguments])


def _children(element: Element) -> Group:
    return Group("children: [", [_widget(child) for child in element.children], "]")


def _column(element: Element) -> Group:
    return Group("Column(", [_START, _children(element)])


def _widget(element: Element) -> Code:  # noqa: PLR0911 - one for each kind
    match element.kind:
        case "row":
            children = [Group("Flexible(", [after("child: ", _widget(child))]) for child in element.children]
            return _call("Row", element, ["spacing: 16", Group("children: [", children, "]")])
        case "column":
            return _call("Column", element, [_START, _children(element)])
        case "grid":
            shape = ["shrinkWrap: true", "physics: const NeverScrollableScrollPhysics()", "childAspectRatio: 3"]
            return _call("GridView.count", element, [f"crossAxisCount: {element.columns}", *shape, _children(element)])
        case "group":
            decoration = _decoration(element.text, "OutlineInputBorder()")
            return _call("InputDecorator", element, [decoration, after("child: ", _column(element))])
        case "tabs":
            return _tabs(element)
        case "input" | "area":
            return _field(element)
        case "checkbox" | "select" | "radio":
            return _choice(element)
        case "list" | "table" | "progress":
            return _shown(element)
        case _:
            return _plain(element)


def _decoration(label: str, border: str) -> str:
    return f"decoration: const InputDecoration(labelText: {dart(label)}, border: {border})"


def _captioned(label: str, child: Code) -> Group:
    return Group("InputDecorator(", [_decoration(label, "InputBorder.none"), after("child: ", child)])


def _tabs(element: Element) -> Group:
    tabs = [_call("Tab", tab, [f"text: {dart(tab.text)}"]) for tab in element.children]
    views = [Group("SingleChildScrollView(", [after("child: ", _column(tab))]) for tab in element.children]
    view = Group("child: TabBarView(", [Group("children: [", views, "]")])
    column = [Group("TabBar(", [Group("tabs: [", tabs, "]")]), Group("SizedBox(", ["height: 400", view])]
    child = Group("child: Column(", [Group("children: [", column, "]")])
    return _call("DefaultTabController", element, [f"length: {len(element.children)}", child])


def _field(element: Element) -> Group:
    place = f"values[{dart(element.id)}]"
    decoration = f"decoration: const InputDecoration(labelText: {dart(element.label)})"
    arguments = [f"initialValue: {place} as String?", decoration]
    if element.kind == "area":
        arguments.append("maxLines: 4")
    if element.type == "password":
        arguments.append("obscureText: true")
    elif element.type == "search":
        arguments.append("textInputAction: TextInputAction.search")
    elif element.type in KEYBOARDS:
        arguments.append(f"keyboardType: TextInputType.{KEYBOARDS[element.type]}")
    if element.autocomplete:
        arguments.append(f"autofillHints: const [AutofillHints.{HINTS[element.autocomplete]}]")
    return _call("TextFormField", element, [*arguments, f"onChanged: (value) => {place} = value"])


def _choice(element: Element) -> Group:
    place = f"values[{dart(element.id)}]"
    changed = f"onChanged: (value) => setState(() => {place} = value)"
    match element.kind:
        case "checkbox":
            shown = [f"title: const Text({dart(element.label)})", "controlAffinity: ListTileControlAffinity.leading"]
            return _call("CheckboxListTile", element, [*shown, f"value: {place} as bool?", changed])
        case "select":
            items = [f"DropdownMenuItem(value: {dart(each)}, child: Text({dart(each)}))" for each in element.options]
            decoration = f"decoration: const InputDecoration(labelText: {dart(element.label)})"
            shown = [f"initialValue: {place} as String?", decoration, Group("items: const [", items, "]"), changed]
            return _call("DropdownButtonFormField<String>", element, shown)
        case _:
            tiles = [
                f"RadioListTile<String>(value: {dart(each)}, title: const Text({dart(each)}))"
                for each in element.options
            ]
            children = Group("children: [", [f"const Text({dart(element.label)})", *tiles], "]")
            column = Group("child: Column(", [_START, children])
            return _call("RadioGroup<String>", element, [f"groupValue: {place} as String?", changed, column])


def _shown(element: Element) -> Group:
    match element.kind:
        case "list":
            lines = [f"const Text({dart('• ' + option)})" for option in element.options]
            return _call("ListBody", element, [Group("children: [", lines, "]")])
        case "progress":
            value = [f"value: {element.percent / 100:g}", f"semanticsLabel: {dart(element.text)}"]
            return _captioned(element.text, _call("LinearProgressIndicator", element, value))
        case _:
            heads = Group("columns: const [", [f"DataColumn(label: Text({dart(cell)}))" for cell in element.head], "]")
            rows = [
                Group("DataRow(cells: [", [f"DataCell(Text({dart(cell)}))" for cell in row], "])")
                for row in element.rows
            ]
            table = _call("DataTable", element, [heads, Group("rows: const [", rows, "]")])
            return _captioned(element.text, table) if element.text else table


def _plain(element: Element) -> Group:
    match element.kind:
        case "heading":
            style = _style(element, [f"fontSize: {_SIZES[element.level - 1]}", "fontWeight: FontWeight.bold"])
            text = _call("Text", element, [dart(element.text), style])
            return Group("Semantics(", ["header: true", f"headingLevel: {element.level}", after("child: ", text)])
        case "button" | "link":
            return _button(element)
        case "image":
            made = "Image.network" if element.source.startswith("http") else "Image.asset"
            spoken = "excludeFromSemantics: true" if element.decorative else f"semanticLabel: {dart(element.text)}"
            return _call(made, element, [dart(element.source), spoken])
        case _:
            styled = [_style(element, [])] if element.color or element.background else []
            return _call("Text", element, [dart(element.text), *styled])


def _button(element: Element) -> Group:
    name = "FilledButton" if element.kind == "button" else "TextButton"
    styles = [f"foregroundColor: const {_color(element.color)}"] if element.color else []
    styles += [f"backgroundColor: const {_color(element.background)}"] if element.background else []
    if element.size is not None:
        styles += [
            "fixedSize: const Size({}, {})".format(*element.size),
            "minimumSize: Size.zero",
            "padding: EdgeInsets.zero",
        ]
        styles.append("tapTargetSize: MaterialTapTargetSize.shrinkWrap")
    style = [Group(f"style: {name}.styleFrom(", styles)] if styles else []
    pressed = f"onPressed: () => widget.onAction({dart(element.id)}, values)"
    made = _call(name, element, [*style, pressed, f"child: const Text({dart(element.text)})"])
    if element.kind == "button":
        return made
    return Group("Semantics(", ["link: true", f"linkUrl: Uri.parse({dart(element.target)})", after("child: ", made)])


def _style(element: Element, more: Sequence[str]) -> str:
    colors = [f"color: {_color(element.color)}"] if element.color else []
    colors += [f"backgroundColor: {_color(element.background)}"] if element.background else []
    return f"style: const TextStyle({', '.join([*more, *colors])})"


def _color(color: str) -> str:
    return f"Color(0xFF{color[1:].upper()})"
