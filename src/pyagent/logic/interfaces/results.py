"""What the work on interfaces comes to, as values, and how people are shown it."""

from __future__ import annotations

from typing import Literal

import msgspec

from pyagent.core.one_line import printable
from pyagent.logic.interfaces.elements import Element
from pyagent.logic.interfaces.findings import Finding
from pyagent.logic.interfaces.found import Found
from pyagent.logic.interfaces.frameworks import FrameworkName
from pyagent.logic.interfaces.outline import outline

Action = Literal["generate", "read", "find", "audit"]


class Interface(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An interface: its code where it was generated, and its tree. `notes` tell what rules mended."""

    framework: FrameworkName
    page: Element
    path: str = ""
    code: str = ""
    notes: list[str] = []


class Audited(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an audit found in a file, and whether axe-core looked at it too."""

    path: str
    framework: FrameworkName
    num_elements: int
    findings: list[Finding]
    by_axe: bool = False


class GuiResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was generated, read, found or audited."""

    action: Action
    interfaces: list[Interface] = []
    audits: list[Audited] = []
    found: list[Found] = []
    num_cached: int = 0

    def __str__(self) -> str:
        match self.action:
            case "generate":
                made = self.interfaces[0]
                return f"{made.framework} is written to {printable(made.path)}" if made.path else made.code
            case "read":
                return "\n\n".join(
                    _titled(each.path, outline(each.page), len(self.interfaces)) for each in self.interfaces
                )
            case "find":
                return "\n".join(map(_shown, self.found))
            case "audit":
                return "\n\n".join(map(_shown_audit, self.audits))


def _titled(path: str, text: str, count: int) -> str:
    return f"{printable(path)}\n{text}" if count > 1 else text


def _shown(found: Found) -> str:
    inside = f", in {printable(found.inside)}" if found.inside else ""
    name = f" {printable(found.text[:80])!r}" if found.text else ""
    given = f" #{printable(found.id)}" if found.id else ""
    return f"{printable(found.path)}:{found.line}  {found.kind}{name}{given}{inside}  (#{found.hash})"


def _shown_audit(audited: Audited) -> str:
    by = "our rules and axe-core" if audited.by_axe else "our rules"
    count = f"{len(audited.findings)} finding{'' if len(audited.findings) == 1 else 's'}"
    head = f"{printable(audited.path)} ({audited.framework}): {count} in {audited.num_elements} elements, by {by}"
    return "\n".join([head, *(f"  {printable(str(finding))}" for finding in audited.findings)])
