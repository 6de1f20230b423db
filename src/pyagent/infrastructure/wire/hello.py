"""The first message each way: which protocol a peer speaks, in which version.

Its shape is the same in every version, so that any two can say why they do not understand each other.
"""

from __future__ import annotations

import msgspec

from pyagent.core.errors import WireError


class Hello(msgspec.Struct, frozen=True, tag="Hello"):
    """A protocol's name, and a version that both ends must have."""

    protocol: str
    version: str

    def check(self, theirs: Hello, peer: str) -> None:
        """Raise `WireError` when a peer's hello is of another protocol or version than this one."""
        if theirs != self:
            text = (
                f"{peer} speaks {theirs.protocol[:40]!r} version {theirs.version[:40]!r}, expected {self.protocol!r} "
                f"version {self.version!r}; restart both with the same release of PyAgent"
            )
            raise WireError(text, peer=peer)
