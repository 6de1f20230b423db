"""Writes a page as a widget of PySide6. A button emits `action` with its id and all values."""

from __future__ import annotations

import re

from pyagent.logic.interfaces.elements import Element, InputType
from pyagent.logic.interfaces.python_code import Code
from pyagent.logic.interfaces.web_writing import component_name, escaped

HINTS: dict[InputType, str] = {
    "email": "ImhEmailCharactersOnly",
    "url": "ImhUrlCharactersOnly",
    "tel": "ImhDialableCharactersOnly",
    "number": "ImhFormattedNumbersOnly",
    "date": "ImhDate",
}
_RUN = """if __name__ == "__main__":
    app = QApplication(sys.argv)
    page = {name}()
    page.action.connect(print)
    page.show()
    sys.exit(app.exec())
"""
_DOC = '    """The page; a button emits its id and the values of all inputs."""\n\n    action = Signal(str, dict)\n'
_SIZES = (26, 22, 19, 17, 15, 14)


def write_qt(page: Element) -> str:
    """Return a page as a module of Python."""
    return _Writer(page).module()


def with_ampersands(text: str) -> str:
    """Return a text for a button, a box or a tab of Qt, where one ampersand would mark a shortcut."""
    return text.replace("&", "&&")


class _Writer:
    def __init__(self, page: Element) -> None:
        self._page = page
        self._code = Code(2)

    def module(self) -> str:
        page, add = self._page, self._code.add
        add("super().__init__()")
        add(f"self.setWindowTitle({page.text!r})")
        add(f"self.setLocale(QLocale({page.language!r}))")
        self._finish("self", page)
        add("values = {}")
        add("page = QVBoxLayout(self)")
        for child in page.children:
            self._write(child, "page", "")
        add("page.addStretch()")
        body = "\n".join(self._code.lines)
        name = component_name(page)
        run = _RUN.format(name=name)
        widgets = sorted(
            {*re.findall(r"\bQ[A-Z]\w+(?=\()", body), "QApplication", "QWidget"} - {"QLocale", "QPixmap"}
            | self._used_only(body)
        )
        core = sorted({"Signal", "QLocale"} | ({"Qt"} if "Qt." in body else set()))
        pixmap = "from PySide6.QtGui import QPixmap\n" if "QPixmap(" in body else ""
        imports = (
            f"import sys\n\nfrom PySide6.QtCore import {', '.join(core)}\n{pixmap}from PySide6.QtWidgets import (\n"
        )
        imports += "".join(f"    {widget},\n" for widget in widgets) + ")\n"
        return f"{imports}\n\nclass {name}(QWidget):\n{_DOC}\n    def __init__(self):\n{body}\n\n\n{run}"

    @staticmethod
    def _used_only(body: str) -> set[str]:
        return {"QRadioButton"} if "QRadioButton" in body else set()

    def _write(self, element: Element, parent: str, place: str) -> None:
        match element.kind:
            case "row" | "column" | "grid":
                self._layout(element, parent, place)
            case "group":
                group = self._make(element, "group", f"QGroupBox({with_ampersands(element.text)!r})", parent, place)
                inner = self._code.name(element, "inner")
                self._code.add(f"{inner} = QVBoxLayout({group})")
                self._children(element, inner)
            case "tabs":
                self._tabs(element, parent, place)
            case "input" | "area" | "select" | "progress" | "table":
                self._field(element, parent, place)
            case "checkbox":
                name = self._make(element, "check", f"QCheckBox({with_ampersands(element.label)!r})", parent, place)
                if element.checked:
                    self._code.add(f"{name}.setChecked(True)")
                self._code.add(f"values[{element.id!r}] = {name}.isChecked")
            case "radio":
                self._radio(element, parent, place)
            case "list":
                name = self._make(element, "list", "QListWidget()", parent, place)
                self._code.add(f"{name}.addItems({list(element.options)})")
            case _:
                self._plain(element, parent, place)

    def _make(self, element: Element, kind: str, made: str, parent: str, place: str) -> str:
        name = self._code.name(element, kind)
        self._code.add(f"{name} = {made}")
        self._finish(name, element)
        self._code.add(f"{parent}.addWidget({name}{place})")
        return name

    def _finish(self, name: str, element: Element) -> None:
        """Write a widget's id, colours and size."""
        if element.id:
            self._code.add(f"{name}.setObjectName({element.id!r})")
        rules = [f"color: {element.color}"] if element.color else []
        rules += [f"background-color: {element.background}"] if element.background else []
        if element.kind == "heading":
            rules = [f"font-size: {_SIZES[element.level - 1]}px", "font-weight: bold", *rules]
        if rules:
            self._code.add(f"{name}.setStyleSheet({'; '.join(rules)!r})")
        if element.size is not None:
            self._code.add(f"{name}.setFixedSize({element.size[0]}, {element.size[1]})")

    def _layout(self, element: Element, parent: str, place: str) -> None:
        name = self._code.name(element, element.kind)
        made = {"row": "QHBoxLayout", "column": "QVBoxLayout", "grid": "QGridLayout"}[element.kind]
        self._code.add(f"{name} = {made}()")
        self._finish(name, element)
        self._code.add(f"{parent}.addLayout({name}{place})")
        for column in range(element.columns):
            self._code.add(f"{name}.setColumnStretch({column}, 1)")
        self._children(element, name)

    def _children(self, element: Element, name: str) -> None:
        for number, child in enumerate(element.children):
            row, column = divmod(number, max(element.columns, 1))
            self._write(child, name, f", {row}, {column}" if element.kind == "grid" else "")

    def _tabs(self, element: Element, parent: str, place: str) -> None:
        name = self._make(element, "tabs", "QTabWidget()", parent, place)
        for tab in element.children:
            inside, inner = self._code.name(tab, "tab"), self._code.name(tab, "inner")
            self._code.add(f"{inside} = QWidget()")
            self._finish(inside, tab)
            self._code.add(f"{name}.addTab({inside}, {with_ampersands(tab.text)!r})")
            self._code.add(f"{inner} = QVBoxLayout({inside})")
            self._children(tab, inner)

    def _field(self, element: Element, parent: str, place: str) -> None:
        """Write an input with its label in a form of one row, which ties the two."""
        add = self._code.add
        field, name = self._code.name(element, "field"), self._code.name(element, "entry")
        label = self._code.name(element, "label")
        add(f"{field} = QFormLayout()")
        add(f"{field}.setRowWrapPolicy(QFormLayout.RowWrapPolicy.WrapAllRows)")
        add(f"{parent}.addLayout({field}{place})")
        self._entry(element, name)
        self._finish(name, element)
        add(f"{label} = QLabel({with_ampersands(element.label)!r})")
        add(f"{label}.setTextFormat(Qt.TextFormat.PlainText)")
        add(f"{label}.setBuddy({name})")
        add(f"{field}.addRow({label}, {name})")

    def _entry(self, element: Element, name: str) -> None:
        add = self._code.add
        match element.kind:
            case "area":
                add(f"{name} = QPlainTextEdit({element.value!r})")
                add(f"values[{element.id!r}] = {name}.toPlainText")
            case "select":
                add(f"{name} = QComboBox()")
                add(f"{name}.addItems({list(element.options)})")
                add(f"{name}.setCurrentText({element.value!r})" if element.value else f"{name}.setCurrentIndex(-1)")
                add(f"values[{element.id!r}] = {name}.currentText")
            case "progress":
                add(f"{name} = QProgressBar()")
                add(f"{name}.setValue({element.percent})")
            case "table":
                add(f"{name} = QTableWidget({len(element.rows)}, {len(element.head)})")
                add(f"{name}.setHorizontalHeaderLabels({list(element.head)})")
                for row, cells in enumerate(element.rows):
                    for column, cell in enumerate(cells):
                        add(f"{name}.setItem({row}, {column}, QTableWidgetItem({cell!r}))")
            case _:
                add(f"{name} = QLineEdit({element.value!r})")
                if element.type == "password":
                    add(f"{name}.setEchoMode(QLineEdit.EchoMode.Password)")
                elif element.type == "search":
                    add(f"{name}.setClearButtonEnabled(True)")
                elif element.type in HINTS:
                    add(f"{name}.setInputMethodHints(Qt.InputMethodHint.{HINTS[element.type]})")
                add(f"values[{element.id!r}] = {name}.text")

    def _radio(self, element: Element, parent: str, place: str) -> None:
        add = self._code.add
        group = self._make(element, "group", f"QGroupBox({with_ampersands(element.label)!r})", parent, place)
        inner = self._code.name(element, "inner")
        add(f"{inner} = QVBoxLayout({group})")
        for number, option in enumerate(element.options, 1):
            button = f"{element.id}_option{number}"
            add(f"{button} = QRadioButton({with_ampersands(option)!r})")
            add(f'{button}.setProperty("value", {option!r})')
            if option == element.value:
                add(f"{button}.setChecked(True)")
            add(f"{inner}.addWidget({button})")
        chosen = f'[each.property("value") for each in {group}.findChildren(QRadioButton) if each.isChecked()]'
        add(f'values[{element.id!r}] = lambda: next(iter({chosen}), "")')

    def _plain(self, element: Element, parent: str, place: str) -> None:
        add = self._code.add
        match element.kind:
            case "button":
                name = self._make(element, "button", f"QPushButton({with_ampersands(element.text)!r})", parent, place)
                add(f"{name}.clicked.connect(")
                add(f"    lambda: self.action.emit({element.id!r}, {{each: get() for each, get in values.items()}})")
                add(")")
            case "link":
                text = f'<a href="{escaped(element.target)}">{escaped(element.text)}</a>'
                name = self._make(element, "link", f"QLabel({text!r})", parent, place)
                add(f"{name}.setTextFormat(Qt.TextFormat.RichText)")
                add(f"{name}.setOpenExternalLinks(True)")
            case "image":
                name = self._make(element, "image", f"QLabel({element.text!r})", parent, place)
                add(f"{name}.setTextFormat(Qt.TextFormat.PlainText)")
                add(f"{name}.setAccessibleName({element.text!r})")
                picture = self._code.name(element, "picture")
                add(f"{picture} = QPixmap({element.source!r})")
                add(f"if not {picture}.isNull():")
                add(f"    {name}.setPixmap({picture})")
            case _:
                name = self._make(element, element.kind, f"QLabel({element.text!r})", parent, place)
                add(f"{name}.setTextFormat(Qt.TextFormat.PlainText)")
                add(f"{name}.setWordWrap(True)")
                if element.kind == "heading":
                    add(f'{name}.setProperty("level", {element.level})')
