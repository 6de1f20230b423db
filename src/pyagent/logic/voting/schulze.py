"""Schulze's method: the option that beats each other one along a stronger path than it is beaten along.

Strengths are winning votes, as in Schulze's paper (A new monotonic, clone-independent, reversal symmetric, and
Condorcet-consistent single-winner election method, 2011). A Condorcet winner always wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Matrix = Mapping[str, Mapping[str, int]]


def condorcet_winner(above: Matrix) -> str | None:
    """Return the option that more ballots rank above each other one than below it; None when there is none."""
    beats_all = (
        name for name in above if all(above[name][other] > above[other][name] for other in above if other != name)
    )
    return next(beats_all, None)


def ranking(above: Matrix) -> list[list[str]]:
    """Return the options, the best first; those that do not beat each other are a group."""
    paths = strongest_paths(above)
    left, groups = list(above), list[list[str]]()
    while left:
        unbeaten = [name for name in left if all(paths[name][other] >= paths[other][name] for other in left)]
        groups.append(unbeaten)
        left = [name for name in left if name not in unbeaten]
    return groups


def strongest_paths(above: Matrix) -> dict[str, dict[str, int]]:
    """Return how strong the strongest path from each option to each other is: as strong as its weakest victory."""
    names: Sequence[str] = list(above)
    path = {one: {two: above[one][two] if above[one][two] > above[two][one] else 0 for two in names} for one in names}
    for middle in names:
        onward = path[middle]
        for start in names:
            row = path[start]
            reach = row[middle]
            if not reach or start == middle:
                continue
            for end in names:
                if end != start and (strength := min(reach, onward[end])) > row[end]:
                    row[end] = strength
    return path
