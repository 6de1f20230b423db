from array import array

from pyagent_aim import Aim

from pyagent.plugin import AddedRow, BatchUpdate


def test_rows_keep_their_marks_when_they_move():
    """A row's end gets likelier after its own mark, wherever the row is."""
    aim = Aim(frozenset({1}))
    rows = [AddedRow(row, {"tokens": wanted}, [], [7] * 8) for row, wanted in enumerate([4, 16, 8])]
    aim.update_state(BatchUpdate(3, [], rows, []))
    logits = memoryview(array("f", [0.0] * 6)).cast("B").cast("f", [3, 2])
    aim.apply(logits)
    assert logits.tolist() == [[0.0, 20.0], [0.0, -2.5], [0.0, 0.0]]
    aim.update_state(BatchUpdate(2, [0], [], [(2, 0)]))
    logits = memoryview(array("f", [0.0] * 4)).cast("B").cast("f", [2, 2])
    aim.apply(logits)
    assert logits.tolist() == [[0.0, 0.0], [0.0, -2.5]]
