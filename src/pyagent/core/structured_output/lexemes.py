"""Which parts of a grammar llguidance may take as lexemes without changing what the grammar means. Pure.

GBNF knows characters alone. llguidance splits a text into lexemes first, each as long as it can be, and never goes
back: of `[a-z]* "foo"` as two lexemes no text would end. What is regular is one lexeme where no character that may
follow could also continue it, or another one that may stand in its place; else it is taken apart, down to characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pyagent.core.structured_output.characters import EMPTY, Characters, Summary, too_complex
from pyagent.core.structured_output.nodes import Either, Node, Ref, Repeat, Sequence, Text, parts_of

_MAX_LEXEMES = 1000
_MAX_PLACES, _MAX_PAIRS = 5000, 500_000
_ROOT = Ref("root")
_END = 1
"""The bit for what follows the whole text; the others are lexemes in sets of them."""


class Lexemes:
    """The lexemes of a grammar: every regular part that was not taken apart.

    `spell` writes one as a terminal; two that are spelled alike are one.
    """

    def __init__(self, rules: Mapping[str, Node], spell: Callable[[Node], str], *, is_embedded: bool) -> None:
        self.chars = Characters(rules)
        self.spell = spell
        self._after_end = self.chars.all if is_embedded else 0
        self.regular = self.chars.regular
        self.rules = {name: body if name in self.regular else self._grouped(body) for name, body in rules.items()}
        self._opened = set[Node]()
        self._letters = dict[Node, Node]()
        self._num_pairs = 0
        while offenders := self._offenders():
            self._opened |= offenders

    def is_lexeme(self, node: Node) -> bool:
        """Whether a node is written as a terminal."""
        return node not in self._opened and self.chars.is_regular(node)

    def apart(self, node: Node) -> Node:
        """Return a node that is no lexeme; a text as its characters."""
        if not isinstance(node, Text):
            return node
        if node not in self._letters:
            self._letters[node] = Sequence(tuple(map(Text, node.text)))
        return self._letters[node]

    def reached(self) -> list[str]:
        """Return the names of the rules that are written as rules."""
        found, left = dict[str, None](), [*self.called(_ROOT)]
        while left:
            name = left.pop()
            if name not in found:
                found[name] = None
                left += self.called(self.rules[name])
        return [*found]

    def called(self, node: Node) -> Iterator[str]:
        """Yield the rules that a node is written with."""
        if self.is_lexeme(node):
            return
        if isinstance(node, Ref):
            yield node.name
        for part in parts_of(node):
            yield from self.called(part)

    def _grouped(self, node: Node) -> Node:
        """Return a node in whose sequences what is regular in a row is one node."""
        match node:
            case Sequence(items):
                groups = list[list[Node]]()
                for item in items:
                    is_regular = self.chars.is_regular(item)
                    if is_regular and groups and self.chars.is_regular(groups[-1][0]):
                        groups[-1].append(item)
                    else:
                        groups.append([item if is_regular else self._grouped(item)])
                return Sequence(tuple(group[0] if len(group) == 1 else Sequence(tuple(group)) for group in groups))
            case Either(items):
                return Either(tuple(map(self._grouped, items)))
            case Repeat(item, least, most):
                return Repeat(self._grouped(item), least, most)
            case _:
                return node

    def _offenders(self) -> set[Node]:
        """Return the lexemes that could take what is meant for the next one."""
        places = _Places(self)
        summaries = [EMPTY, *(self.chars.summary(nodes[0]) for nodes in places.nodes)]
        chars = {following: self._chars_of(following, summaries) for following in {*places.following}}
        follows = [chars[following] for following in places.following]
        found = {number for number, (one, after) in enumerate(zip(summaries, follows, strict=True)) if one.ext & after}
        for together in self._together(places, summaries):
            found |= self._ambiguous(together, summaries, follows)
        return {node for number in found for node in places.nodes[number - 1]}

    def _together(self, places: _Places, summaries: list[Summary]) -> Iterator[list[int]]:
        """Yield the lexemes that may stand in one place, for each place.

        After a text that several of them match, what follows any of these may stand.
        """
        known, left = {places.first}, [places.first]
        while left:
            together = [*_bits(left.pop() & ~_END)]
            yield together
            alike = list[tuple[int, int]]()
            for number in together:
                chars, following = summaries[number].first, places.following[number]
                for other in [one for one in alike if one[0] & chars]:
                    alike.remove(other)
                    chars, following = chars | other[0], following | other[1]
                alike.append((chars, following))
            new = {following for _, following in alike} - known
            known |= new
            left += new
            if len(known) > _MAX_PLACES:
                raise too_complex("too many parts may follow one another")

    def _ambiguous(self, together: list[int], summaries: list[Summary], follows: list[int]) -> set[int]:
        """Return which of some lexemes that may stand in one place could go on where another is followed by more."""
        self._num_pairs += len(together) ** 2
        if self._num_pairs > _MAX_PAIRS:
            raise too_complex("too many parts may stand in one place")
        return {
            longer
            for longer in together
            if (one := summaries[longer]).inner
            and any(
                follows[other] & one.inner and summaries[other].first & one.first
                for other in together
                if other != longer
            )
        }

    def _chars_of(self, following: int, summaries: list[Summary]) -> int:
        found = self._after_end if following & _END else 0
        for number in _bits(following & ~_END):
            found |= summaries[number].first
        return found


class _Places:
    """Which lexemes may come first, and which after each; of those that are spelled alike, together."""

    def __init__(self, lexemes: Lexemes) -> None:
        self._lexemes = lexemes
        self.nodes = list[list[Node]]()
        self.following = [0]
        self._numbers = dict[str, int]()
        self._node_numbers = dict[Node, int]()
        self._begins = dict[str, tuple[bool, int]]()
        self._find_beginnings()
        is_empty, first = self._beginning(_ROOT)
        self.first = first | (_END if is_empty else 0)
        self._follow()

    def _find_beginnings(self) -> None:
        reached = self._lexemes.reached()
        users = dict[str, set[str]]()
        for name in reached:
            for other in self._lexemes.called(self._lexemes.rules[name]):
                users.setdefault(other, set()).add(name)
        self._begins.update(dict.fromkeys(reached, (False, 0)))
        left = dict.fromkeys(reversed(reached))
        while left:
            name = next(iter(left))
            del left[name]
            found = self._beginning(self._lexemes.rules[name])
            if found != self._begins[name]:
                self._begins[name] = found
                left.update(dict.fromkeys(users.get(name, ())))

    def _beginning(self, node: Node) -> tuple[bool, int]:
        """Return whether a node may be empty, and the lexemes that it may begin with."""
        if self._lexemes.is_lexeme(node):
            number = self._number(node)
            return self._lexemes.chars.summary(node).is_empty, 1 << number
        match self._lexemes.apart(node):
            case Ref(name):
                return self._begins[name]
            case Sequence(items):
                is_empty, first = True, 0
                for item in items:
                    if not is_empty:
                        break
                    is_empty, more = self._beginning(item)
                    first |= more
                return is_empty, first
            case Either(items):
                found = [self._beginning(item) for item in items]
                first = 0
                for _, more in found:
                    first |= more
                return any(is_empty for is_empty, _ in found), first
            case Repeat(item, least, _):
                is_empty, first = self._beginning(item)
                return is_empty or not least, first
            case _:  # a token, which no text continues
                return False, 0

    def _number(self, node: Node) -> int:
        number = self._node_numbers.get(node)
        if number is None:
            if len(self.nodes) == _MAX_LEXEMES:
                raise too_complex(f"more than {_MAX_LEXEMES} parts")
            number = self._numbers.setdefault(self._lexemes.spell(node), len(self.nodes) + 1)
            if number > len(self.nodes):
                self.nodes.append([])
                self.following.append(0)
            self.nodes[number - 1].append(node)
            self._node_numbers[node] = number
        return number

    def _follow(self) -> None:
        follow, left = dict[str, int](), dict[str, None]()
        for name, after in self._after(_ROOT, _END):
            follow[name], left[name] = after, None
        while left:
            name = next(iter(left))
            del left[name]
            for called, after in self._after(self._lexemes.rules[name], follow[name]):
                if called not in follow or after & ~follow[called]:
                    follow[called] = follow.get(called, 0) | after
                    left[called] = None

    def _after(self, node: Node, after: int) -> Iterator[tuple[str, int]]:
        """Yield what follows each rule in a node that `after` follows; note it of the lexemes."""
        if self._lexemes.is_lexeme(node):
            self.following[self._number(node)] |= after
            return
        match self._lexemes.apart(node):
            case Ref(name):
                yield name, after
            case Sequence(items):
                for item in reversed(items):
                    yield from self._after(item, after)
                    is_empty, first = self._beginning(item)
                    after = first | (after if is_empty else 0)
            case Either(items):
                for item in items:
                    yield from self._after(item, after)
            case Repeat(item, _, most):
                again = 0 if most == 1 else self._beginning(item)[1]
                yield from self._after(item, after | again)
            case _:  # a token, which no rule stands in
                return


def _bits(numbers: int) -> Iterator[int]:
    while numbers:
        low = numbers & -numbers
        yield low.bit_length() - 1
        numbers ^= low
