"""Which part of a prompt's KV comes next: layer by layer, of all wanted pages, each once. Pure."""

from __future__ import annotations

from pyagent.core.runners.kv_connector import KvLayers


class LayerProgress:
    """What has come so far of the layers of some pages; a part is some layers of all pages, or a layer of some."""

    def __init__(self, num_layers: int, num_pages: int, layer_bytes: int) -> None:
        """A layer of a page has `layer_bytes` bytes."""
        self._num_layers = num_layers
        self._num_pages = num_pages
        self._layer_bytes = layer_bytes
        self._next_layer = 0
        self._next_page = 0
        self.num_bytes = 0

    def take(self, part: KvLayers) -> int:
        """Return of how many pages a part is. Raises `ValueError`, and takes nothing, for one that is not the next."""
        first, num, data, page = part
        if first != self._next_layer or page != self._next_page or not 0 < num <= self._num_layers - first:
            text = f"layers {first} and {num - 1} more from page {page} on came, expected layer {self._next_layer}"
            raise ValueError(f"{text} from page {self._next_page} on, of {self._num_layers} layers")
        num_bytes = memoryview(data).nbytes
        num_pages, rest = divmod(num_bytes, num * self._layer_bytes)
        if rest or not 0 < num_pages <= self._num_pages - page or (num > 1 and num_pages < self._num_pages):
            whole = num * self._layer_bytes * (self._num_pages - page)
            raise ValueError(f"{num_bytes} bytes of {num} layers came, expected {whole}, or whole pages of one layer")
        self.num_bytes += num_bytes
        self._next_page += num_pages
        if self._next_page == self._num_pages:
            self._next_layer, self._next_page = first + num, 0
        return num_pages

    def check_whole(self) -> None:
        """Raise `ValueError` where something has not come."""
        if self._next_layer != self._num_layers:
            text = f"{self._next_layer} layers and {self._next_page} pages of the next came"
            raise ValueError(f"{text}, expected {self._num_layers} layers of {self._num_pages} pages")
