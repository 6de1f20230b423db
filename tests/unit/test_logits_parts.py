"""The parts that logits processors run in: rows that move, tokens that are shown, memory that is lent, a clock."""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plugins import discover, info_of
from support.waiting import wait_until

from pyagent import _rust
from pyagent.core.hooks import hookimpl
from pyagent.core.logits_processors import BroughtLogitsProcessor
from pyagent.infrastructure.engine.logits.batch_rows import change_rows
from pyagent.infrastructure.engine.logits.bounded_thread import BoundedThread, _Worker
from pyagent.infrastructure.engine.logits.row_processors import BatchProcessor, RowProcessor
from pyagent.infrastructure.engine.logits.scratch import Scratch
from pyagent.infrastructure.engine.logits.step_logits import StepLogits
from pyagent.infrastructure.engine.logits.token_view import TokenView


@given(st.lists(st.sets(st.integers(0, 12)), max_size=8))
def test_followed_changes_lead_to_the_same_rows(steps: list[set[int]]) -> None:
    """Who removes, adds and moves as told has the rows that there are, and those who stay are added once."""
    rows: list[int] = []
    followed: list[int | None] = []
    for wanted in steps:
        before = set(rows)
        changes = change_rows(rows, sorted(wanted))
        for row in changes.removed:
            assert followed[row] not in wanted
            followed[row] = None
        for row, who in changes.added:
            followed += [None] * (row + 1 - len(followed))
            assert followed[row] is None
            followed[row] = who
        for source, target in changes.moved:
            assert followed[target] is None
            followed[target], followed[source] = followed[source], None
        del followed[len(changes.rows) :]
        rows = changes.rows
        assert followed == rows
        assert set(rows) == wanted
        assert {who for _, who in changes.added} == wanted - before
        assert changes.is_none == (wanted == before)


@given(st.lists(st.integers(0, 9), max_size=9), st.integers(0, 9), st.slices(9))
def test_view_of_tokens_is_the_part_of_the_log(log: list[int], start: int, part: slice) -> None:
    """A view has the tokens of its part, by index and slice, and grows with the log."""
    start = min(start, len(log))
    view, prompt = TokenView(log, start), TokenView(log, 0, start)
    log.append(5)
    assert list(view) == view[:] == log[start:]
    assert view[part] == log[start:][part]
    assert list(prompt) == log[:start]
    assert view[-1] == 5
    for outside in (len(view), -len(view) - 1):
        with pytest.raises(IndexError):
            view[outside]


@pytest.mark.parametrize(
    "keep",
    [lambda view: view, lambda view: view[1:3], lambda view: memoryview(view.obj), lambda view: view.cast("B")],
)
def test_memory_that_is_kept_is_not_lent_again(keep: Callable[[memoryview], memoryview]) -> None:
    """The next borrower gets other memory, whatever the last one kept of his; else the same."""
    scratch = Scratch()
    with scratch.lend([4]) as view:
        memory = view.obj
    with scratch.lend([4]) as view:
        assert view.obj is memory
        kept = keep(view)
    with scratch.lend([2, 2]) as view:
        assert view.shape == (2, 2)
        assert kept is view or view.obj is not memory or not _is_usable(kept)


def _is_usable(view: memoryview) -> bool:
    try:
        return view.nbytes > 0
    except ValueError:
        return False


def test_pieces_after_one_that_hangs_are_run() -> None:
    """A piece that takes too long is told with its thread, which ends where it runs Python; the others are run."""
    done: list[str] = []
    started, has_ended = threading.Event(), threading.Event()

    def spin() -> None:
        started.set()
        try:
            while True:
                pass
        finally:
            has_ended.set()

    bounded = BoundedThread(0.2)
    overdue = bounded.run([lambda: done.append("a"), spin, lambda: done.append("b")])
    assert list(overdue) == [1]
    assert done == ["a", "b"]
    wait_until(has_ended.is_set)
    wait_until(lambda: not overdue[1].is_alive())
    assert bounded.run([lambda: done.append("c")]) == {}
    bounded.close()
    assert done[-1] == "c"


def test_piece_that_ends_as_it_is_given_up_is_not_followed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a piece ends between the look at the clock and giving it up, its thread goes on, and no other does."""
    may_end, has_gone_on = threading.Event(), threading.Event()
    num_run: list[int] = []
    leave = _Worker.leave

    def late(worker: _Worker, index: int) -> bool:
        may_end.set()
        assert has_gone_on.wait(60)
        return leave(worker, index)

    def first() -> None:
        may_end.wait(60)

    def second() -> None:
        num_run.append(1)
        has_gone_on.set()

    monkeypatch.setattr(_Worker, "leave", late)
    bounded = BoundedThread(0.05)
    assert bounded.run([first, second]) == {}
    bounded.close()
    assert len(num_run) == 1


def _sampled(process: Callable[[Any], dict[int, str]] | None, values: list[float], **more: Any) -> Any:
    logits = array("f", values)
    samplers = [_rust.SamplerState(temperature=0.0, num_logprobs=2) for _ in range(len(values) // 4)]
    processed = frozenset(more.pop("processed", range(len(samplers))))
    return _rust.sample_logits(
        logits, samplers, [0] * len(samplers), more.pop("masks", {}), process=process, processed=processed
    )


def test_rows_that_are_not_changed_are_sampled_as_ever() -> None:
    """Going through a processor that changes nothing is to leave it out, for each row."""
    values = [1.0, 3.0, 2.0, 3.0, -1.0, 0.5, -math.inf, 0.25]
    masks = {0: bytes([0b0101, 0, 0, 0])}

    def same(rows: _rust.LogitsRows) -> dict[int, str]:
        buffer = memoryview(array("f", [0.0] * rows.vocab_size))
        for segment in rows.segments:
            rows.read([segment], buffer)
            assert rows.write([segment], buffer) == {}
        return {}

    assert _sampled(same, values, masks=masks) == _sampled(None, values, masks=masks)


def test_rows_are_the_steps_alone() -> None:
    """Rows are lent for a call: those asked for, of the right size, and none when it is over."""
    kept: list[_rust.LogitsRows] = []
    one, two = (memoryview(array("f", [0.0] * size)) for size in (4, 8))

    def look(rows: _rust.LogitsRows) -> dict[int, str]:
        kept.append(rows)
        assert rows.segments == [1, 2]
        rows.read([2, 1], two)
        assert list(two) == [8.0, 9.0, 10.0, 11.0, 4.0, 5.0, 6.0, 7.0]
        for segments in ([0], [3, 1]):
            with pytest.raises(IndexError, match="no row of segment"):
                rows.read(segments, two)
        with pytest.raises(BufferError, match="slice to copy from"):
            rows.read([1], two)
        for unfit in (bytes(16), memoryview(bytes(16)).cast("f"), memoryview(array("d", [0.0] * 4))):
            with pytest.raises(BufferError):
                rows.read([1], unfit)
        two[0] = 99.0
        assert rows.write([1, 2], two) == {}
        return {2: "is not wanted"}

    tokens, _, errors = _sampled(look, [float(value) for value in range(12)], processed=[1, 2])
    assert tokens[:2] == [3, 0]
    assert errors == {2: "is not wanted"}
    with pytest.raises(RuntimeError, match="the step that had these logits is over"):
        kept[0].read([1], one)


def test_row_that_the_model_broke_is_no_plugins_fault() -> None:
    """A row of logits that are no numbers ends with that reason; no processor sees it."""
    seen: list[int] = []

    def look(rows: _rust.LogitsRows) -> dict[int, str]:
        seen.extend(rows.segments)
        return {}

    _, _, errors = _sampled(look, [0.0, math.nan, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0])
    assert seen == [1]
    assert list(errors) == [0]
    assert "the model's output is broken" in errors[0]


def test_order_is_that_of_the_page() -> None:
    """What can change the best token comes first, batch processors before functions, and those as they are named."""
    called: list[tuple[str, int]] = []

    def processor(name: str, *, is_batched: bool = False, is_invariant: bool = False) -> RowProcessor:
        make = {"make_batch" if is_batched else "make": lambda *_: None}
        factory = SimpleNamespace(name=name, arguments={}, is_argmax_invariant=is_invariant, **make)
        brought: Any = BroughtLogitsProcessor.of(factory, "tests")  # type: ignore[arg-type]
        vocabulary: Any = None
        if not is_batched:

            def note(prompt: object, output: Sequence[int], logits: memoryview) -> None:
                called.append((name, output[0]))

            return RowProcessor(brought, {}, vocabulary, None, note)
        crowd = SimpleNamespace(
            update_state=lambda update: None, apply=lambda logits: called.append((name, logits.shape[0]))
        )
        factory.make_batch = lambda vocabulary: crowd
        batches.setdefault(name, BatchProcessor(brought, vocabulary))
        return RowProcessor(brought, {}, vocabulary, batches[name])

    def request(request_id: int) -> Any:
        processors = (
            processor("soft", is_invariant=True),
            processor("softer", is_batched=True, is_invariant=True),
            processor("z"),
            processor("y", is_batched=True),
            processor("a"),
            processor("b", is_batched=True),
        )
        return SimpleNamespace(id=request_id, tokens=[0, request_id], num_prompt_tokens=1, processors=processors)

    batches: dict[str, BatchProcessor] = {}
    step = StepLogits(60)
    assert _sampled(partial(step.process, [request(7), request(8)]), [1.0, 2.0, 3.0, 4.0] * 2)[2] == {}
    step.close()
    functions = [("z", 7), ("a", 7), ("z", 8), ("a", 8)]
    assert called == [("b", 2), ("y", 2), *functions, ("softer", 2), ("soft", 7), ("soft", 8)]


def _factory(**changes: object) -> SimpleNamespace:
    good = {"name": "p", "arguments": {}, "is_argmax_invariant": False, "make": lambda args, vocabulary: None}
    return SimpleNamespace(**{name: value for name, value in {**good, **changes}.items() if value is not None})


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        (_factory(make=None), "which has neither `make` nor `make_batch`, expected one of the two"),
        (_factory(make_batch=print), "which has make and make_batch, expected one of the two"),
        (_factory(is_argmax_invariant="no"), "whose `is_argmax_invariant` is neither True nor False"),
        (_factory(arguments="none"), "whose `arguments` is 'none', expected a JSON schema of an object"),
        (_factory(arguments={"properties": 5}), "whose `arguments` is no JSON schema: "),
        (_factory(name="a b"), "instances with a `name` without spaces and slashes"),
    ],
)
def test_plugin_with_a_wrong_factory_is_quarantined(factory: object, reason: str) -> None:
    """What cannot work is said when the plugin is asked, with its name; the host goes on without it."""

    class Plugin:
        @hookimpl
        def pyagent_register_logits_processors(self) -> list[object]:
            return [factory]

    host = discover()
    host.register(Plugin(), "wrong")
    assert host.logits_processors() == {}
    assert reason in info_of(host, "wrong").reason


def test_plugins_list_has_logits_processors() -> None:
    """A plugin's processors are listed by their names."""

    class Plugin:
        @hookimpl
        def pyagent_register_logits_processors(self) -> list[object]:
            return [_factory(), _factory(name="q")]

    host = discover()
    host.register(Plugin(), "right")
    host.load_all()
    assert info_of(host, "right").provides == {"logits_processors": ("p", "q")}
