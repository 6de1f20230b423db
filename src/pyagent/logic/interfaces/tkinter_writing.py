"""Writes a page as a function of Tkinter: `build(root, on_action)`. A button calls `on_action(its id, all values)`."""

from __future__ import annotations

from pyagent.logic.interfaces.elements import Element, Kind, walk
from pyagent.logic.interfaces.python_code import Code

STYLE_OF: dict[Kind, str] = {"heading": "TLabel", "text": "TLabel", "link": "Link.TLabel", "button": "TButton"}
_SIZES = (22, 18, 15, 13, 12, 11)
_HEAD = '''


def build(root, on_action=print):
    """Show the page in a window; return a function for each input that has its value."""
'''
_RUN = """

if __name__ == "__main__":
    window = tk.Tk()
    build(window)
    window.mainloop()
"""


def write_tkinter(page: Element) -> str:
    """Return a page as a module of Python."""
    return _Writer(page).module()


class _Writer:
    def __init__(self, page: Element) -> None:
        self._page = page
        self._code = Code(1)

    def module(self) -> str:
        page, add = self._page, self._code.add
        add(f"root.title({page.text!r})")
        add("style = ttk.Style(root)")
        self._styles()
        name = f", name={page.id!r}" if page.id else ""
        add(f"page = ttk.Frame(root, padding=16{name})")
        add('page.pack(fill="both", expand=True)')
        add("values = {}")
        for child in page.children:
            self._write(child, "page", 'pack(anchor="w", fill="x", pady=4)')
        add("return values")
        has_links = any(each.kind == "link" for each in walk(page))
        imports = ["import tkinter as tk", *(["import webbrowser"] if has_links else []), "from tkinter import ttk"]
        return "\n".join(imports) + _HEAD + "\n".join(self._code.lines) + "\n" + _RUN

    def _styles(self) -> None:
        add, page = self._code.add, self._page
        if colors := _colors(page):
            add(f'style.configure("."{colors})')
        elements = list(walk(page))
        for level in sorted({each.level for each in elements if each.kind == "heading"}):
            add(f'style.configure("Heading{level}.TLabel", font=("TkDefaultFont", {_SIZES[level - 1]}, "bold"))')
        if any(each.kind == "link" for each in elements):
            add('style.configure("Link.TLabel", foreground="#0000cc", font=("TkDefaultFont", 10, "underline"))')
        for each in elements:
            if each.kind in STYLE_OF and (colors := _colors(each)):
                add(f"style.configure({_style(each)!r}{colors})")

    def _write(self, element: Element, parent: str, place: str) -> None:
        match element.kind:
            case "row" | "column" | "grid" | "group":
                self._container(element, parent, place)
            case "tabs":
                self._tabs(element, parent, place)
            case "input" | "area" | "select" | "progress" | "table":
                self._field(element, parent, place)
            case "checkbox":
                self._checkbox(element, parent, place)
            case "radio":
                self._radio(element, parent, place)
            case "list":
                self._list(element, parent, place)
            case _:
                self._plain(element, parent, place)

    def _make(self, element: Element, kind: str, made: str, place: str) -> str:
        """Write a widget and where it stands; return the name of its variable."""
        name = self._code.name(element, kind)
        self._code.add(f"{name} = {made}")
        self._code.add(f"{name}.{place}")
        return name

    def _container(self, element: Element, parent: str, place: str) -> None:
        if element.kind == "group":
            made = f"ttk.LabelFrame({parent}{_named(element)}, text={element.text!r}, padding=8)"
        else:
            style = f"{element.kind.capitalize()}{element.columns or ''}.TFrame"
            made = f"ttk.Frame({parent}{_named(element)}, style={style!r})"
        name = self._make(element, element.kind, made, place)
        for number, child in enumerate(element.children):
            self._write(child, name, _place(element, number))

    def _tabs(self, element: Element, parent: str, place: str) -> None:
        name = self._make(element, "tabs", f"ttk.Notebook({parent}{_named(element)})", place)
        for tab in element.children:
            frame = self._code.name(tab, "tab")
            self._code.add(f"{frame} = ttk.Frame({name}{_named(tab)}, padding=8)")
            self._code.add(f"{name}.add({frame}, text={tab.text!r})")
            for child in tab.children:
                self._write(child, frame, 'pack(anchor="w", fill="x", pady=4)')

    def _field(self, element: Element, parent: str, place: str) -> None:
        field = self._make(element, "field", f'ttk.Frame({parent}, style="Field.TFrame")', place)
        if element.text:
            self._make(element, "label", f"ttk.Label({field}, text={element.label!r})", 'pack(anchor="w")')
        if element.kind == "table":
            self._table(element, field)
        elif element.kind == "area":
            area = self._make(
                element, "area", f"tk.Text({field}{_named(element)}, height=4, width=40)", 'pack(anchor="w")'
            )
            if element.value:
                self._code.add(f'{area}.insert("1.0", {element.value!r})')
            self._code.add(f'values[{element.id!r}] = lambda: {area}.get("1.0", "end-1c")')
        elif element.kind == "progress":
            made = f"ttk.Progressbar({field}{_named(element)}, maximum=100, value={element.percent}, length=240)"
            self._make(element, "bar", made, 'pack(anchor="w")')
        else:
            variable = self._variable(element, f"tk.StringVar(root, value={element.value!r})")
            self._make(element, "entry", f"{_entry(element, field)}, textvariable={variable})", 'pack(anchor="w")')

    def _variable(self, element: Element, made: str) -> str:
        variable = self._code.name(element, "value")
        self._code.add(f"{variable} = {made}")
        self._code.add(f"values[{element.id!r}] = {variable}.get")
        return variable

    def _checkbox(self, element: Element, parent: str, place: str) -> None:
        variable = self._variable(element, f"tk.BooleanVar(root, value={element.checked})")
        made = f"ttk.Checkbutton({parent}{_named(element)}, text={element.label!r}, variable={variable})"
        self._make(element, "check", made, place)

    def _radio(self, element: Element, parent: str, place: str) -> None:
        variable = self._variable(element, f"tk.StringVar(root, value={element.value!r})")
        made = f'ttk.LabelFrame({parent}{_named(element)}, text={element.label!r}, style="Radio.TLabelframe")'
        group = self._make(element, "group", made, place)
        for option in element.options:
            made = f"ttk.Radiobutton({group}, text={option!r}, value={option!r}, variable={variable})"
            self._code.add(f'{made}.pack(anchor="w")')

    def _list(self, element: Element, parent: str, place: str) -> None:
        frame = self._make(element, "list", f'ttk.Frame({parent}{_named(element)}, style="List.TFrame")', place)
        for option in element.options:
            self._code.add(f'ttk.Label({frame}, text={"• " + option!r}).pack(anchor="w")')

    def _table(self, element: Element, parent: str) -> None:
        numbers = [str(number) for number in range(len(element.head))]
        shown = f'columns={numbers}, show="headings", height={min(len(element.rows), 10)}'
        made = f"ttk.Treeview({parent}{_named(element)}, {shown})"
        table = self._make(element, "table", made, 'pack(anchor="w")')
        for number, cell in zip(numbers, element.head, strict=True):
            self._code.add(f"{table}.heading({number!r}, text={cell!r})")
        for row in element.rows:
            self._code.add(f'{table}.insert("", "end", values={list(row)})')

    def _plain(self, element: Element, parent: str, place: str) -> None:
        add = self._code.add
        style = f", style={style!r}" if (style := _style(element)) not in {"TLabel", "TButton"} else ""
        match element.kind:
            case "button":
                called = f"on_action({element.id!r}, {{name: get() for name, get in values.items()}})"
                made = f"ttk.Button({parent}{_named(element)}, text={element.text!r}{style}, command=lambda: {called})"
                self._make(element, "button", made, place.replace(', fill="x"', ""))
            case "link":
                shown = f'text={element.text!r}{style}, cursor="hand2", takefocus=True'
                made = f"ttk.Label({parent}{_named(element)}, {shown})"
                name = self._make(element, "link", made, place)
                for event in ("<Button-1>", "<Return>"):
                    add(f"{name}.bind({event!r}, lambda event: webbrowser.open({element.target!r}))")
            case "image":
                picture = self._code.name(element, "picture")
                add("try:")
                add(f"    {picture} = tk.PhotoImage(master=root, file={element.source!r})")
                add("except tk.TclError:  # where there is no such file, its text is shown")
                add(f'    {picture} = ""')
                name = self._make(
                    element,
                    "image",
                    f"ttk.Label({parent}{_named(element)}, text={element.text!r}, image={picture})",
                    place,
                )
                add(f"{name}.picture = {picture}")
            case _:
                made = f"ttk.Label({parent}{_named(element)}, text={element.text!r}{style}, wraplength=640)"
                self._make(element, element.kind, made, place)


def _place(element: Element, number: int) -> str:
    match element.kind:
        case "row":
            return 'pack(side="left", anchor="s", padx=4)'
        case "grid":
            row, column = divmod(number, element.columns)
            return f'grid(row={row}, column={column}, sticky="w", padx=4, pady=4)'
        case _:
            return 'pack(anchor="w", fill="x", pady=4)'


def _named(element: Element) -> str:
    return f", name={element.id!r}" if element.id else ""


def _entry(element: Element, parent: str) -> str:
    """Return the beginning of the call that makes an input; its type is told by the style's name, or the widget's."""
    if element.kind == "select":
        return f'ttk.Combobox({parent}{_named(element)}, values={list(element.options)}, state="readonly"'
    match element.type:
        case "number":
            return f"ttk.Spinbox({parent}{_named(element)}, from_=-1000000, to=1000000"
        case "password":
            return f'ttk.Entry({parent}{_named(element)}, show="•"'
        case "text":
            return f"ttk.Entry({parent}{_named(element)}"
        case kind:
            return f"ttk.Entry({parent}{_named(element)}, style={f'{kind.capitalize()}.TEntry'!r}"


def _style(element: Element) -> str:
    base = STYLE_OF.get(element.kind, "")
    base = f"Heading{element.level}.{base}" if element.kind == "heading" else base
    return f"{element.id}.{base}" if _colors(element) else base


def _colors(element: Element) -> str:
    pairs = (("foreground", element.color), ("background", element.background))
    return "".join(f", {name}={color!r}" for name, color in pairs if color)
