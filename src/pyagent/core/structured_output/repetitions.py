"""Rules that call themselves only to repeat, as repetitions: those are regular, and the parser needs no stack. Pure."""

from __future__ import annotations

from pyagent.core.structured_output.nodes import Either, Node, Ref, Repeat, Sequence, refs

_NOTHING = Sequence(())


def with_repetitions(name: str, body: Node) -> Node:
    """Return a rule's body: `a ::= x a | y` as `x* y`, and `a ::= a x | y` as `y x*`."""
    ways = _ways(body)
    for is_last in (True, False):
        again = [_without(way, name, is_last=is_last) for way in ways]
        others = [way for way, rest in zip(ways, again, strict=True) if rest is None]
        repeated = [rest for rest in again if rest is not None]
        if repeated and others and not any(name in refs(way) for way in (*repeated, *others)):
            many = Repeat(_either(repeated), 0, None)
            return Sequence((many, _either(others)) if is_last else (_either(others), many))
    return body


def _ways(node: Node) -> list[Node]:
    if isinstance(node, Either):
        return [way for item in node.items for way in _ways(item)]
    if isinstance(node, Repeat) and (node.least, node.most) == (0, 1):
        return [*_ways(node.item), _NOTHING]
    return [node]


def _without(way: Node, name: str, *, is_last: bool) -> Node | None:
    """Return a way without the rule's own name at its end, or its beginning; None where it is not there."""
    if not isinstance(way, Sequence) or len(way.items) < 2:
        return None
    own = way.items[-1 if is_last else 0]
    if not isinstance(own, Ref) or own.name != name:
        return None
    return Sequence(way.items[:-1] if is_last else way.items[1:])


def _either(ways: list[Node]) -> Node:
    return ways[0] if len(ways) == 1 else Either(tuple(ways))
