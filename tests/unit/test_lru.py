"""Values within a bound of bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.lru import ByteBoundedLru

MOST_BYTES, MOST_ENTRIES = 20, 4
calls = st.lists(st.tuples(st.sampled_from(["put", "get", "peek", "pop"]), st.integers(0, 6), st.integers(0, 25)))


@given(calls)
def test_lru_is_within_its_bounds_and_keeps_the_most_recently_used(steps: list[tuple[str, int, int]]) -> None:
    """After any calls the bytes and entries are within their bounds, and what is held is what a list would hold."""
    lru: ByteBoundedLru[int, str] = ByteBoundedLru(lambda num_bytes: num_bytes <= MOST_BYTES, MOST_ENTRIES)
    model: list[tuple[int, int]] = []  # key and bytes, the least recently used first
    for call, key, num_bytes in steps:
        held = [entry for entry in model if entry[0] == key]
        if call == "put":
            lru.put(key, str(key), num_bytes)
            model = [entry for entry in model if entry[0] != key] + [(key, num_bytes)]
            while len(model) > MOST_ENTRIES or sum(size for _, size in model) > MOST_BYTES:
                model.pop(0)
        elif call == "pop":
            lru.pop(key)
            model = [entry for entry in model if entry[0] != key]
        else:
            found = lru.get(key) if call == "get" else lru.peek(key)
            assert found == (str(key) if held else None)
            if call == "get":
                model = [entry for entry in model if entry[0] != key] + held
        assert (len(lru), lru.num_bytes) == (len(model), sum(size for _, size in model))
        assert lru.oldest() == (str(model[0][0]) if model else None)


def test_lru_gives_up_all_where_nothing_has_room() -> None:
    """Without room for anything a value that is put in goes at once, and no error is raised."""
    lru: ByteBoundedLru[str, int] = ByteBoundedLru(lambda _: False)
    lru.put("a", 1, 1)
    assert (len(lru), lru.num_bytes, lru.oldest()) == (0, 0, None)
