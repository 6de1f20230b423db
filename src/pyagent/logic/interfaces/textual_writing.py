"""Writes a page as an app of Textual. A button ends the app with its id and all values. Texts hold no markup."""

from __future__ import annotations

import re

from pyagent.logic.interfaces.elements import Element, walk
from pyagent.logic.interfaces.python_code import Code
from pyagent.logic.interfaces.web_writing import component_name

_RULES = (
    (".field", "height: auto; margin-bottom: 1"),
    (".row", "height: auto; layout: horizontal"),
    (".column", "height: auto"),
    (".group", "height: auto; border: round $primary; padding: 0 1"),
    (".legend", "text-style: bold"),
    (".list", "height: auto"),
    ("TextArea", "height: 6"),
    ("DataTable", "height: auto; max-height: 20"),
)
_VALUES = {
    "input": "values |= {each.id: each.value for each in self.query(Input)}",
    "area": "values |= {each.id: each.text for each in self.query(TextArea)}",
    "checkbox": "values |= {each.id: each.value for each in self.query(Checkbox)}",
    "select": "values |= {each.id: each.selection for each in self.query(Select)}",
    "radio": (
        "values |= {each.id: str(each.pressed_button.label) for each in self.query(RadioSet) if each.pressed_button}"
    ),
}


def write_textual(page: Element) -> str:
    """Return a page as a module of Python."""
    return _Writer(page).module()


class _Writer:
    def __init__(self, page: Element) -> None:
        self._page = page
        self._code = Code(2)

    def module(self) -> str:
        page = self._page
        self._code.add(f"with VerticalScroll({f'id={page.id!r}' if page.id else ''}):")
        self._code.depth += 1
        for child in page.children:
            self._write(child)
        body = "\n".join(self._code.lines)
        pressed = self._pressed()
        name = component_name(page)
        rules = "\n".join(f"    {rule}" for rule in self._rules(body))
        css = f'    CSS = """\n{rules}\n    """\n'
        made = body + pressed
        widgets = sorted(
            set(
                re.findall(
                    r"\b(Button|Checkbox|DataTable|Input|Label|Link|ProgressBar|RadioButton|RadioSet|Select|Static|TabbedContent|TabPane|TextArea)\b(?=[(.)])",
                    made,
                )
            )
        )
        containers = sorted(set(re.findall(r"\b(Grid|HorizontalGroup|VerticalGroup|VerticalScroll)(?=\()", body)))
        imports = ["from rich.text import Text"] if "Text(" in re.sub(r"\w+Text\(", "", body) else []
        imports += [
            "from textual.app import App, ComposeResult",
            f"from textual.containers import {', '.join(containers)}",
        ]
        imports += ["from textual.content import Content"] if "Content(" in body else []
        imports += [f"from textual.widgets import {', '.join(widgets)}"] if widgets else []
        compose = f"    def compose(self) -> ComposeResult:\n{body}\n"
        doc = '    """The page; a button ends it with its id and the values of all inputs."""\n'
        run = f'if __name__ == "__main__":\n    print({name}().run())\n'
        parts = [
            "\n".join(imports),
            "",
            "",
            f"class {name}(App):\n{doc}\n    TITLE = {page.text!r}\n{css}\n{compose}{pressed}\n\n{run}",
        ]
        return "\n".join(parts)

    def _rules(self, body: str) -> list[str]:
        rules = [
            f"{selector} {{ {rule}; }}" for selector, rule in _RULES if re.search(rf"\b{selector.lstrip('.')}\b", body)
        ]
        elements = list(walk(self._page))
        grids = sorted({each.columns for each in elements if each.kind == "grid"})
        rules += [
            f".grid-{columns} {{ height: auto; grid-size: {columns}; grid-rows: auto; grid-gutter: 1; }}"
            for columns in grids
        ]
        levels = sorted({each.level for each in elements if each.kind == "heading"})
        rules += [
            f".heading-{level} {{ text-style: bold{' underline' if level == 1 else ''}; margin-bottom: 1; }}"
            for level in levels
        ]
        for each in elements:
            colors = [f"color: {each.color};"] if each.color else []
            colors += [f"background: {each.background};"] if each.background else []
            if colors:
                rules.append(f"{'Screen' if each.kind == 'page' else '#' + each.id} {{ {' '.join(colors)} }}")
        return rules

    def _pressed(self) -> str:
        kinds = {each.kind for each in walk(self._page)}
        if "button" not in kinds:
            return ""
        lines = [
            "",
            "    def on_button_pressed(self, event: Button.Pressed) -> None:",
            '        """End the app."""',
            "        values = {}",
        ]
        lines += [f"        {line}" for kind, line in _VALUES.items() if kind in kinds]
        return "\n".join([*lines, "        self.exit((event.button.id, values))", ""])

    def _write(self, element: Element) -> None:
        match element.kind:
            case "row":
                self._container("HorizontalGroup", element, "row")
            case "column":
                self._container("VerticalGroup", element, "column")
            case "grid":
                self._container("Grid", element, f"grid-{element.columns}")
            case "group":
                self._open("VerticalGroup", _options(element, classes="group"))
                self._code.add(f'yield Label({_content(element.text)}, classes="legend")')
                self._close(element)
            case "tabs":
                self._open("TabbedContent", _options(element))
                for tab in element.children:
                    self._open("TabPane", f"{_content(tab.text)}, {_options(tab)}")
                    self._close(tab)
                self._code.depth -= 1
            case "list":
                self._open("VerticalGroup", _options(element, classes="list"))
                for option in element.options:
                    self._code.add(f"yield Label({_content('• ' + option)})")
                self._code.depth -= 1
            case "checkbox":
                value = ", value=True" if element.checked else ""
                self._code.add(f"yield Checkbox({_content(element.label)}{value}, {_options(element)})")
            case "input" | "area" | "select" | "radio" | "progress" | "table":
                self._field(element)
            case _:
                self._plain(element)

    def _open(self, name: str, options: str) -> None:
        self._code.add(f"with {name}({options}):")
        self._code.depth += 1

    def _close(self, element: Element) -> None:
        for child in element.children:
            self._write(child)
        self._code.depth -= 1

    def _container(self, name: str, element: Element, classes: str) -> None:
        self._open(name, _options(element, classes=classes))
        self._close(element)

    def _field(self, element: Element) -> None:
        self._open("VerticalGroup", 'classes="field"')
        if element.text:
            self._code.add(f"yield Label({_content(element.label)})")
        add, options = self._code.add, _options(element)
        match element.kind:
            case "input":
                self._input(element)
            case "area":
                add(f"yield TextArea({element.value!r}, {options})")
            case "select":
                pairs = ", ".join(f"({_content(option)}, {option!r})" for option in element.options)
                chosen = f", value={element.value!r}" if element.value else ""
                add(f"yield Select([{pairs}]{chosen}, {options})")
            case "radio":
                self._open("RadioSet", options)
                for option in element.options:
                    add(f"yield RadioButton({_content(option)}{', value=True' if option == element.value else ''})")
                self._code.depth -= 1
            case "progress":
                bar = self._code.name(element, "bar")
                add(f"{bar} = ProgressBar(total=100, show_eta=False, {options})")
                add(f"{bar}.update(progress={element.percent})")
                add(f"yield {bar}")
            case _:
                table = self._code.name(element, "table")
                add(f"{table} = DataTable({options})")
                add(f"{table}.add_columns({', '.join(f'Text({cell!r})' for cell in element.head)})")
                for row in element.rows:
                    add(f"{table}.add_row({', '.join(f'Text({cell!r})' for cell in row)})")
                add(f"yield {table}")
        self._code.depth -= 1

    def _input(self, element: Element) -> None:
        options = [repr(element.value)] if element.value else []
        if element.type == "number":
            options.append('type="number"')
        elif element.type == "password":
            options.append("password=True")
        plain = element.type in {"text", "number", "password"}
        options.append(_options(element, classes="" if plain else element.type))
        self._code.add(f"yield Input({', '.join(options)})")

    def _plain(self, element: Element) -> None:
        options = _options(element, classes=f"heading-{element.level}" if element.kind == "heading" else "")
        options = f", {options}" if options else ""
        match element.kind:
            case "button":
                self._code.add(f"yield Button({_content(element.text)}{options})")
            case "link":
                self._code.add(f"yield Link({_content(element.text)}, url={element.target!r}{options})")
            case "image":
                options = _options(element, classes="image")
                self._code.add(f"yield Static({_content(element.text)}, name={element.source!r}, {options})")
            case _:
                self._code.add(f"yield Label({_content(element.text)}{options})")


def _content(text: str) -> str:
    """Return a text as code that no markup is read in."""
    return f"Content({text!r})"


def _options(element: Element, classes: str = "") -> str:
    options = [f"id={element.id!r}"] if element.id else []
    return ", ".join(options + ([f"classes={classes!r}"] if classes else []))
