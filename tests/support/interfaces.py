"""A page with each kind of element, and a hostile text in most of them."""

from __future__ import annotations

from pyagent.logic.interfaces.elements import Element
from pyagent.logic.interfaces.mending import mend

HOSTILE = '"; alert(1) // </script> {{x}} \\(x) $x [red]'


def everything() -> Element:
    """Return a page with each kind of element, and a hostile text in most."""
    inside = (
        Element(kind="text", text=HOSTILE),
        Element(kind="row", children=(Element(kind="input", text="Email", type="email", value=HOSTILE),)),
        Element(kind="area", text=HOSTILE, value=HOSTILE),
        Element(kind="checkbox", id="box", text=HOSTILE, checked=True),
        Element(
            kind="grid",
            columns=2,
            children=(Element(kind="select", text="Land", options=("A", HOSTILE), value=HOSTILE),),
        ),
        Element(kind="radio", text="Size", options=("S", HOSTILE), value=HOSTILE),
        Element(kind="group", text=HOSTILE, children=(Element(kind="list", options=("one", HOSTILE)),)),
        Element(kind="tabs", children=(Element(kind="tab", text=HOSTILE), Element(kind="tab", text="Two"))),
        Element(kind="table", text=HOSTILE, head=("A", HOSTILE), rows=(("1", HOSTILE),)),
        Element(kind="image", text=HOSTILE, source="none.png"),
        Element(kind="link", text=HOSTILE, target="https://example.com/?a=1&b=2"),
        Element(kind="progress", text="Done", percent=40),
        Element(kind="button", id="go", text=HOSTILE),
    )
    return mend(Element(kind="page", text=HOSTILE, children=inside))[0]
