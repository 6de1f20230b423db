"""Components, projections, clusters and silhouettes against scikit-learn, on its iris, wine and digits."""

from __future__ import annotations

import pytest

from pyagent.logic.stats.matrix import (
    first_centres,
    k_means,
    lloyd,
    needed_dimensions,
    principal_components,
    random_projection,
    silhouette,
    similarities,
)

pytestmark = pytest.mark.oracle
pytest.importorskip("sklearn")
_SETS = ("load_iris", "load_wine", "load_digits")


def _rows(name: str):
    from sklearn import datasets

    return getattr(datasets, name)().data.astype(float)


@pytest.mark.parametrize("name", _SETS)
def test_components_are_those_of_scikit_learn(name: str) -> None:
    """Directions with their signs, variances, ratios and coordinates, at 1e-8."""
    import numpy as np
    from sklearn.decomposition import PCA

    rows = _rows(name)
    number = min(4, rows.shape[1])
    theirs = PCA(number, svd_solver="full").fit(rows)
    ours = principal_components(rows, number)
    np.testing.assert_allclose(ours.directions, theirs.components_, atol=1e-8)
    np.testing.assert_allclose(ours.variances[:number], theirs.explained_variance_, rtol=1e-10)
    np.testing.assert_allclose(ours.ratios[:number], theirs.explained_variance_ratio_, rtol=1e-10)
    np.testing.assert_allclose(ours.coordinates, theirs.transform(rows), atol=1e-7)


@pytest.mark.parametrize("seed", [0, 7])
def test_projections_are_those_of_scikit_learn(seed: int) -> None:
    """The same seed gives the same matrix, and the bound is the same."""
    import numpy as np
    from sklearn.random_projection import GaussianRandomProjection, johnson_lindenstrauss_min_dim

    rows = _rows("load_digits")
    theirs = GaussianRandomProjection(10, random_state=seed).fit_transform(rows)
    np.testing.assert_allclose(random_projection(rows, 10, seed), theirs, rtol=1e-10, atol=1e-10)
    for num_rows, error in ((10, 0.5), (1_000, 0.1), (1_000_000, 0.3)):
        bound = int(johnson_lindenstrauss_min_dim(num_rows, eps=error))
        assert needed_dimensions(num_rows, error) in {bound, bound + 1}  # rounded up, as a bound is


@pytest.mark.parametrize("name", _SETS)
@pytest.mark.parametrize("number", [2, 3, 7])
def test_steps_from_the_same_centres_end_as_those_of_scikit_learn(name: str, number: int) -> None:
    """Lloyd's steps from given centres: the same labels, centres and inertia."""
    import numpy as np
    from sklearn.cluster import KMeans

    rows = _rows(name)
    centred = rows - rows.mean(axis=0)
    centres = first_centres(centred, number, np.random.RandomState(number))
    theirs = KMeans(number, init=centres, n_init=1, algorithm="lloyd").fit(centred)
    ours = lloyd(centred, centres)
    assert ours.inertia == pytest.approx(theirs.inertia_, rel=1e-9)
    assert (ours.labels == theirs.labels_).all()
    np.testing.assert_allclose(ours.centres, theirs.cluster_centers_, atol=1e-8)


@pytest.mark.parametrize("name", _SETS)
def test_best_clusters_are_as_good_as_those_of_scikit_learn(name: str) -> None:
    """Ten starts each, by other draws: within a hundredth of its inertia, or better."""
    from sklearn.cluster import KMeans

    rows = _rows(name)
    for number in (2, 3, 10):
        theirs = KMeans(number, n_init=10, random_state=0).fit(rows).inertia_
        assert k_means(rows, number, 0).inertia <= theirs * 1.01


@pytest.mark.parametrize("name", ["load_iris", "load_wine", "load_digits"])
def test_silhouettes_and_similarities_are_those_of_scikit_learn(name: str) -> None:
    """The mean silhouette of a clustering, and cosine similarity."""
    import numpy as np
    from sklearn.metrics import silhouette_score
    from sklearn.metrics.pairwise import cosine_similarity

    rows = _rows(name)
    labels = k_means(rows, 3, 0).labels
    assert silhouette(rows, labels, 0) == pytest.approx(silhouette_score(rows, labels), rel=1e-8)
    names = [str(place) for place in range(len(rows))]
    np.testing.assert_allclose(similarities(rows, "cosine", names), cosine_similarity(rows), atol=1e-12)
