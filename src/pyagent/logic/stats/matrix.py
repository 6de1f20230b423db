"""Principal components, random projection, k-means and similarity of rows of numbers, by numpy (extra `stats`).

Results are those of scikit-learn: signs as its `svd_flip`, draws from `RandomState`, whose streams never change.
Arrays are numpy's, `float64[rows, columns]`; numpy is optional, so its types cannot be relied on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from math import ceil, inf, log, sqrt
from typing import Any, Literal

from pyagent.core.errors import RequestError

Metric = Literal["cosine", "correlation", "euclidean"]
MAX_COMPARED = 2_000
"""Most rows whose pairs are all looked at; of more a sample is, where one does."""
NUM_STARTS = 10
_MAX_STEPS = 300
_TOLERANCE = 1e-4
_CHUNK_CELLS = 4_000_000


@cache
def numpy() -> Any:
    """Return numpy; raises `RequestError` naming what to install."""
    try:
        return import_module("numpy")
    except ImportError as error:
        text = "this needs numpy (extra `stats`), which is not installed: pip install numpy"
        raise RequestError(text, param="method") from error


@dataclass(frozen=True)
class Components:
    """Directions of most variance (`float64[components, columns]`), all variances, and the rows along them."""

    directions: Any
    variances: Any
    ratios: Any
    coordinates: Any


def principal_components(rows: Any, num_components: int) -> Components:
    """Return the first components, by singular values of the centred rows; the largest loading of each is positive."""
    np = numpy()
    centred = rows - rows.mean(axis=0)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    largest = np.argmax(np.abs(directions), axis=1)
    signs = np.sign(directions[np.arange(len(directions)), largest])
    directions = directions * np.where(signs == 0, 1, signs)[:, None]
    variances = sizes**2 / (len(rows) - 1)
    if not variances.sum() > 0:
        raise RequestError("all rows are the same: nothing varies", param="data")
    kept = directions[:num_components]
    return Components(kept, variances, variances / variances.sum(), centred @ kept.T)


def standardized(rows: Any, names: Sequence[str]) -> Any:
    """Return columns with mean 0 and variance 1; raises `RequestError` for one that does not vary."""
    spread = rows.std(axis=0)
    if (spread == 0).any():
        name = names[int((spread == 0).argmax())]
        raise RequestError(
            f"{name} is the same in each row: it cannot be standardized; name other columns", param="columns"
        )
    return (rows - rows.mean(axis=0)) / spread


def needed_dimensions(num_rows: int, error: float) -> int:
    """Return how many dimensions keep all squared distances within the error, by Johnson and Lindenstrauss."""
    return max(1, ceil(4 * log(num_rows) / (error**2 / 2 - error**3 / 3)))


def kept_error(num_rows: int, num_dimensions: int) -> float | None:
    """Return the least error that the bound allows for so many dimensions; None where it says nothing."""
    if needed_dimensions(num_rows, 0.999) > num_dimensions:
        return None
    low, high = 1e-6, 0.999
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if needed_dimensions(num_rows, middle) <= num_dimensions else (middle, high)
    return high


def random_projection(rows: Any, num_dimensions: int, seed: int) -> Any:
    """Return the rows times a matrix of normal draws, which keeps distances in the mean."""
    np = numpy()
    draws = np.random.RandomState(seed).normal(0, 1 / sqrt(num_dimensions), (num_dimensions, rows.shape[1]))
    return rows @ draws.T


def distortion(rows: Any, projected: Any, seed: int) -> tuple[float, float]:
    """Return the least and the greatest ratio of squared distances, after to before, over at most 20,000 pairs."""
    np = numpy()
    first, second = np.random.RandomState(seed).randint(0, len(rows), (2, 20_000))
    before, after = (_squares_apart(each, first, second) for each in (rows, projected))
    is_apart = before > 0
    if not is_apart.any():
        return 1.0, 1.0
    ratios = after[is_apart] / before[is_apart]
    return float(ratios.min()), float(ratios.max())


def _squares_apart(rows: Any, first: Any, second: Any) -> Any:
    """Return the squared distance of each pair of rows, some pairs at a time, as rows may be long."""
    np = numpy()
    step = max(1, _CHUNK_CELLS // rows.shape[1])
    places = range(0, len(first), step)
    return np.concatenate(
        [((rows[first[at : at + step]] - rows[second[at : at + step]]) ** 2).sum(axis=1) for at in places]
    )


@dataclass(frozen=True)
class Clusters:
    """Each row's cluster, the clusters' centres, and the sum of squared distances to them."""

    labels: Any
    centres: Any
    inertia: float


def k_means(rows: Any, num_clusters: int, seed: int, num_starts: int = NUM_STARTS) -> Clusters:
    """Return the best of some starts by k-means++, each followed by Lloyd's steps."""
    np = numpy()
    chance, mean = np.random.RandomState(seed), rows.mean(axis=0)
    centred = rows - mean
    best: Clusters | None = None
    for _ in range(num_starts):
        found = lloyd(centred, first_centres(centred, num_clusters, chance))
        if best is None or found.inertia < best.inertia:
            best = found
    assert best is not None
    return Clusters(best.labels, best.centres + mean, best.inertia)


def first_centres(rows: Any, num_clusters: int, chance: Any) -> Any:
    """Return centres by greedy k-means++ (Arthur, Vassilvitskii 2007): of some candidates the one that helps most."""
    np = numpy()
    num_candidates = 2 + int(log(num_clusters))
    chosen = [int(chance.randint(len(rows)))]
    nearest = ((rows - rows[chosen[0]]) ** 2).sum(axis=1)
    for _ in range(1, num_clusters):
        total = nearest.sum()
        if not total > 0:
            raise RequestError(f"there are fewer than {num_clusters} different rows", param="clusters")
        places = np.searchsorted(np.cumsum(nearest), chance.uniform(size=num_candidates) * total)
        options = [
            np.minimum(nearest, ((rows - rows[at]) ** 2).sum(axis=1)) for at in np.minimum(places, len(rows) - 1)
        ]
        best = int(np.argmin([option.sum() for option in options]))
        chosen.append(int(min(places[best], len(rows) - 1)))
        nearest = options[best]
    return rows[chosen]


def lloyd(rows: Any, centres: Any) -> Clusters:
    """Return what Lloyd's steps come to: until nothing moves, or by less than a ten-thousandth of the mean variance."""
    enough = _TOLERANCE * rows.var(axis=0).mean()
    labels: Any = None
    for _ in range(_MAX_STEPS):
        new_labels, distances = _nearest(rows, centres)
        moved = _means(rows, new_labels, distances, centres)
        shift = ((moved - centres) ** 2).sum()
        is_same = labels is not None and bool((labels == new_labels).all())
        labels, centres = new_labels, moved
        if is_same or shift <= enough:
            break
    labels, distances = _nearest(rows, centres)
    return Clusters(labels, centres, float(distances.sum()))


def _nearest(rows: Any, centres: Any) -> tuple[Any, Any]:
    """Return each row's nearest centre, and its squared distance."""
    np = numpy()
    labels, distances = np.empty(len(rows), dtype=np.intp), np.empty(len(rows))
    step = max(1, _CHUNK_CELLS // len(centres))
    squares = (centres**2).sum(axis=1)
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        apart = squares - 2 * part @ centres.T
        nearest = apart.argmin(axis=1)
        labels[start : start + step] = nearest
        distances[start : start + step] = ((part - centres[nearest]) ** 2).sum(axis=1)
    return labels, distances


def _means(rows: Any, labels: Any, distances: Any, centres: Any) -> Any:
    """Return the mean of each cluster; one without rows gets the row that is farthest from its centre."""
    np = numpy()
    counts = np.bincount(labels, minlength=len(centres))
    if (counts == 0).any():
        labels = labels.copy()
        for empty, row in zip(np.flatnonzero(counts == 0), np.argsort(-distances, kind="stable"), strict=False):
            labels[row] = empty
        counts = np.bincount(labels, minlength=len(centres))
    order = np.argsort(labels, kind="stable")
    filled = np.flatnonzero(counts)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])[filled]
    moved = centres.copy()
    moved[filled] = np.add.reduceat(rows[order], starts, axis=0) / counts[filled][:, None]
    return moved


def silhouette(rows: Any, labels: Any, seed: int) -> float | None:
    """Return the mean silhouette (Rousseeuw 1987), of a sample where there are many rows; None for one cluster."""
    np = numpy()
    if len(rows) > MAX_COMPARED:
        kept = np.random.RandomState(seed).permutation(len(rows))[:MAX_COMPARED]
        rows, labels = rows[kept], labels[kept]
    names, labels = np.unique(labels, return_inverse=True)
    if not 2 <= len(names) < len(rows):
        return None
    distances = np.sqrt(squared_distances(rows))
    counts = np.bincount(labels)
    to_clusters = distances @ np.eye(len(names))[labels]
    places = np.arange(len(rows))
    within = to_clusters[places, labels] / np.maximum(counts[labels] - 1, 1)
    others = to_clusters / counts
    others[places, labels] = inf
    between = others.min(axis=1)
    widest = np.maximum(within, between)
    scores = np.where(widest > 0, (between - within) / np.where(widest > 0, widest, 1), 0.0)
    return float(np.where(counts[labels] > 1, scores, 0.0).mean())


def squared_distances(rows: Any) -> Any:
    """Return the squared distance of each pair, `float64[rows, rows]`."""
    np = numpy()
    centred = rows - rows.mean(axis=0)
    squares = (centred**2).sum(axis=1)
    apart = np.maximum(squares[:, None] + squares - 2 * centred @ centred.T, 0)
    np.fill_diagonal(apart, 0)
    return apart


def similarities(rows: Any, metric: Metric, labels: Sequence[str]) -> Any:
    """Return how alike each pair is: cosine or correlation from -1 to 1, or 1 / (1 + distance)."""
    np = numpy()
    if metric == "euclidean":
        return 1 / (1 + np.sqrt(squared_distances(rows)))
    rows = rows - rows.mean(axis=1, keepdims=True) if metric == "correlation" else rows
    largest = np.abs(rows).max(axis=1)
    if (largest == 0).any():
        fault = "the same in each column" if metric == "correlation" else "0 in each column"
        raise RequestError(
            f"{labels[int((largest == 0).argmax())]} is {fault}: its {metric} is not defined", param="data"
        )
    scaled = rows / largest[:, None]
    unit = scaled / np.sqrt((scaled**2).sum(axis=1))[:, None]
    return np.clip(unit @ unit.T, -1, 1)
