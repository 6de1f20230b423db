"""Writes a page as a view of SwiftUI. A button calls `onAction` with its id and all values. Texts are verbatim."""

from __future__ import annotations

from pyagent.logic.interfaces.elements import INPUTS, Element, InputType, walk
from pyagent.logic.interfaces.web_writing import component_name

KEYBOARDS: dict[InputType, str] = {
    "email": "emailAddress",
    "url": "URL",
    "tel": "phonePad",
    "number": "decimalPad",
    "date": "numbersAndPunctuation",
    "search": "webSearch",
}
CONTENT_TYPES = {
    "name": "name",
    "given-name": "givenName",
    "family-name": "familyName",
    "username": "username",
    "email": "emailAddress",
    "new-password": "newPassword",
    "current-password": "password",
    "one-time-code": "oneTimeCode",
    "tel": "telephoneNumber",
    "street-address": "fullStreetAddress",
    "postal-code": "postalCode",
    "address-level2": "addressCity",
    "country-name": "countryName",
    "organization": "organizationName",
    "bday": "birthdate",
    "cc-number": "creditCardNumber",
    "cc-exp": "creditCardExpiration",
    "cc-csc": "creditCardSecurityCode",
}
_FONTS = ("largeTitle", "title", "title2", "title3", "headline", "subheadline")


def write_swiftui(page: Element) -> str:
    """Return a page as a file of Swift."""
    return _Writer().file(page)


def swift(text: str) -> str:
    """Return a string of Swift that computes nothing."""
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"'


class _Writer:
    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 2

    def file(self, page: Element) -> str:
        inputs = [each for each in walk(page) if each.kind in INPUTS]
        states = [f"    @State private var {each.id}_value = {_initial(each)}" for each in inputs]
        pairs = [f"{swift(each.id)}: {_as_text(each)}" for each in inputs]
        values = f"    private var values: [String: String] {{\n        [{', '.join(pairs) or ':'}]\n    }}"
        head = f"import SwiftUI\n\nstruct {component_name(page)}: View {{\n"
        head += "    var onAction: (String, [String: String]) -> Void = { _, _ in }"
        self._open("ScrollView {")
        self._open("VStack(alignment: .leading, spacing: 12) {")
        for child in page.children:
            self._write(child)
        self._close("")
        modifiers = f".navigationTitle({_text(page.text)})"
        modifiers += f".environment(\\.locale, Locale(identifier: {swift(page.language)}))"
        self._close(f"{modifiers}{_modifiers(page)}")
        body = "\n".join(self._lines)
        return "\n".join([head, *states, "", values, "", "    var body: some View {", body, "    }", "}"]) + "\n"

    def _add(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)

    def _open(self, line: str) -> None:
        self._add(line)
        self._depth += 1

    def _close(self, modifiers: str) -> None:
        self._depth -= 1
        self._add("}" + modifiers)

    def _write(self, element: Element) -> None:
        match element.kind:
            case "row":
                self._container("HStack(alignment: .bottom, spacing: 16) {", element)
            case "column":
                self._container("VStack(alignment: .leading, spacing: 12) {", element)
            case "grid":
                columns = f"Array(repeating: GridItem(.flexible()), count: {element.columns})"
                self._container(f"LazyVGrid(columns: {columns}, alignment: .leading) {{", element)
            case "group":
                self._container(f"GroupBox(label: Text(verbatim: {swift(element.text)})) {{", element)
            case "tabs":
                self._tabs(element)
            case "input" | "area" | "select" | "radio":
                self._field(element)
            case "checkbox":
                self._open(f"Toggle(isOn: ${element.id}_value) {{")
                self._add(_text(element.label))
                self._close(_modifiers(element))
            case "list" | "table":
                self._shown(element)
            case _:
                self._plain(element)

    def _container(self, line: str, element: Element) -> None:
        self._open(line)
        for child in element.children:
            self._write(child)
        self._close(_modifiers(element))

    def _tabs(self, element: Element) -> None:
        self._open("TabView {")
        for tab in element.children:
            self._open("VStack(alignment: .leading, spacing: 12) {")
            for child in tab.children:
                self._write(child)
            self._close(f".tabItem {{ {_text(tab.text)} }}{_modifiers(tab)}")
        self._close(f".frame(minHeight: 400){_modifiers(element)}")

    def _field(self, element: Element) -> None:
        """Write an input beside its label, which names it."""
        self._open("LabeledContent {")
        place = f"${element.id}_value"
        match element.kind:
            case "area":
                self._add(f"TextEditor(text: {place}).frame(minHeight: 80){_modifiers(element)}")
            case "input":
                name = "SecureField" if element.type == "password" else "TextField"
                more = f".keyboardType(.{KEYBOARDS[element.type]})" if element.type in KEYBOARDS else ""
                more += f".textContentType(.{CONTENT_TYPES[element.autocomplete]})" if element.autocomplete else ""
                self._add(f'{name}("", text: {place}){more}{_modifiers(element)}')
            case _:
                self._open(f'Picker("", selection: {place}) {{')
                for option in element.options:
                    self._add(f"{_text(option)}.tag({swift(option)})")
                self._close(f".pickerStyle(.{'menu' if element.kind == 'select' else 'inline'}){_modifiers(element)}")
        self._close(" label: {")
        self._depth += 1
        self._add(_text(element.label))
        self._close("")

    def _shown(self, element: Element) -> None:
        if element.kind == "list":
            self._open("VStack(alignment: .leading, spacing: 4) {")
            self._open(f"ForEach([{', '.join(swift(option) for option in element.options)}], id: \\.self) {{ item in")
            self._add('Text(verbatim: "• " + item)')
            self._close("")
            self._close(_modifiers(element))
            return
        self._open("Grid(alignment: .leading) {")
        if element.text:
            self._add(_text(element.text))
        for number, row in enumerate([element.head, *element.rows]):
            self._open("GridRow {")
            for cell in row:
                self._add(_text(cell) + (".bold()" if number == 0 else ""))
            self._close("")
        self._close(_modifiers(element))

    def _plain(self, element: Element) -> None:
        text, modifiers = _text(element.text), _modifiers(element)
        match element.kind:
            case "heading":
                font = f".font(.{_FONTS[element.level - 1]})"
                self._add(
                    f"{text}{font}.accessibilityAddTraits(.isHeader).accessibilityHeading(.h{element.level}){modifiers}"
                )
            case "button":
                self._open("Button {")
                self._add(f"onAction({swift(element.id)}, values)")
                self._close(" label: {")
                self._depth += 1
                self._add(text)
                self._close(modifiers)
            case "link":
                self._open(f"Link(destination: URL(string: {swift(element.target)})!) {{")
                self._add(text)
                self._close(modifiers)
            case "image" if element.decorative:
                self._add(f"Image(decorative: {swift(element.source)}){modifiers}")
            case "image":
                self._add(f"Image({swift(element.source)}, label: {text}){modifiers}")
            case "progress":
                self._open(f"ProgressView(value: {element.percent / 100:.2f}) {{")
                self._add(text)
                self._close(modifiers)
            case _:
                self._add(f"{text}{modifiers}")


def _initial(element: Element) -> str:
    if element.kind == "checkbox":
        return "true" if element.checked else "false"
    return swift(element.value)


def _as_text(element: Element) -> str:
    return f"String({element.id}_value)" if element.kind == "checkbox" else f"{element.id}_value"


def _text(text: str) -> str:
    return f"Text(verbatim: {swift(text)})"


def _modifiers(element: Element) -> str:
    width, height = element.size or (0, 0)
    modifiers = [f".frame(width: {width}, height: {height})"] if element.size else []
    modifiers += [f".foregroundColor({_color(element.color)})"] if element.color else []
    modifiers += [f".background({_color(element.background)})"] if element.background else []
    modifiers += [f".accessibilityIdentifier({swift(element.id)})"] if element.id else []
    return "".join(modifiers)


def _color(color: str) -> str:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"Color(red: {red} / 255, green: {green} / 255, blue: {blue} / 255)"
