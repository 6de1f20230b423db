"""How a prompt's KV is divided into messages, and put together again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.runners.kv_connector import KvLayers
from pyagent.infrastructure.cluster.kv_exports import parts_of
from pyagent.infrastructure.engine.kv_moves.progress import LayerProgress

sizes = st.integers(1, 40)


@given(sizes, sizes, sizes, st.integers(1, 4000))
def test_messages_hold_each_layer_of_each_page_once(layers: int, pages: int, layer_bytes: int, most_bytes: int) -> None:
    """No message is longer than it may be, or a page's layer is; in their order they make the whole prompt."""
    progress = LayerProgress(layers, pages, layer_bytes)
    parts = list(parts_of(layers, pages, layer_bytes, most_bytes))
    for of_layers, of_pages in parts:
        num_bytes = len(of_layers) * len(of_pages) * layer_bytes
        assert num_bytes <= max(most_bytes, layer_bytes)
        part = KvLayers(of_layers.start, len(of_layers), bytes(num_bytes), of_pages.start)
        assert progress.take(part) == len(of_pages)
    progress.check_whole()
    assert progress.num_bytes == layers * pages * layer_bytes


def test_messages_are_as_few_as_their_length_allows() -> None:
    """Layers go together as long as they fit, then pages of a layer."""
    whole = [(range(4), range(10))]
    assert list(parts_of(4, 10, 1, 40)) == whole
    assert list(parts_of(4, 10, 1, 20)) == [(range(2), range(10)), (range(2, 4), range(10))]
    assert len(list(parts_of(4, 10, 1, 9))) == 8
    assert len(list(parts_of(4, 10, 1, 1))) == 40


@pytest.mark.parametrize(
    "part",
    [
        KvLayers(1, 1, bytes(12)),
        KvLayers(0, 1, bytes(12), 1),
        KvLayers(0, 0, bytes(12)),
        KvLayers(0, 1, bytes(0)),
        KvLayers(0, 1, bytes(7)),
        KvLayers(0, 1, bytes(16)),
        KvLayers(0, 2, bytes(16)),
        KvLayers(0, 4, bytes(48)),
        KvLayers(0, -1, bytes(12)),
        KvLayers(0, 1, bytes(12), -1),
    ],
)
def test_part_that_is_not_the_next_is_refused(part: KvLayers) -> None:
    """Of three layers of three pages with four bytes each: another layer or page, no whole pages, or too many."""
    progress = LayerProgress(3, 3, 4)
    with pytest.raises(ValueError, match="came, expected"):
        progress.take(part)
    with pytest.raises(ValueError, match="0 layers and 0 pages"):
        progress.check_whole()
    assert progress.take(KvLayers(0, 2, bytes(24))) == 3
    assert progress.take(KvLayers(2, 1, bytes(8))) == 2
    with pytest.raises(ValueError, match="2 layers and 2 pages of the next"):
        progress.check_whole()
    for wrong in (KvLayers(2, 1, bytes(8)), KvLayers(2, 1, bytes(8), 2), KvLayers(0, 1, bytes(4), 2)):
        with pytest.raises(ValueError, match="came, expected"):
            progress.take(wrong)
    assert progress.take(KvLayers(2, 1, bytes(4), 2)) == 1
    progress.check_whole()
