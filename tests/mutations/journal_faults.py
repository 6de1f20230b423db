"""Faults in what keeps runs, notes and search."""

from __future__ import annotations

from fault import Fault

_STORAGE = "src/pyagent/infrastructure/storage"

FAULTS = (
    Fault(
        "two-write-one-run",
        f"{_STORAGE}/journal.py",
        ("            number, writer, epoch = self._found(run)\n            if self._is_written(run, writer):"),
        (
            "            number, writer, epoch = self._found(run)\n"
            "            if not writer and self._is_written(run, writer):"
        ),
        "tests/unit/test_resume.py::test_running_run_is_not_resumed",
    ),
    Fault(
        "done-runs-go-on",
        f"{_STORAGE}/journal.py",
        "AND state = 'done'\"",
        "AND state = 'never'\"",
        "tests/unit/test_run_races.py::test_a_run_that_is_done_is_not_gone_on_with",
    ),
    Fault(
        "replay-passes-over-gaps",
        f"{_STORAGE}/journal.py",
        "if record is None or number != expected:",
        "if record is None:",
        "tests/unit/test_journal.py::test_damage_is_told_and_the_rest_is_read",
    ),
    Fault(
        "forced-records-are-not",
        f"{_STORAGE}/database.py",
        "PRAGMA synchronous = FULL",
        "PRAGMA synchronous = NORMAL ",
        "tests/unit/test_resume_effects.py::test_what_is_to_be_done_is_on_the_disk_before_it_is_done",
    ),
    Fault(
        "effects-go-on-unkept",
        "src/pyagent/core/fleet/tool_run.py",
        "        context.run.emit(started, is_forced=True)\n        self._check_kept()",
        "        context.run.emit(started, is_forced=True)",
        "tests/unit/test_resume.py::test_run_that_cannot_be_kept_has_no_more_effects",
    ),
    Fault(
        "lost-end-counts-as-running",
        f"{_STORAGE}/journal.py",
        "            return run in self._open\n",
        "            return True\n",
        "tests/integration/test_full_disk.py::test_run_whose_end_had_no_room_is_resumed_by_its_server",
    ),
    Fault(
        "waiting-runs-keep-their-place",
        "src/pyagent/core/fleet/people.py",
        "        if self.slot is not None:\n            self.slot.suspend()",
        "        if self.slot is not None:\n            pass",
        "tests/unit/test_questions.py::test_run_that_waits_for_a_person_leaves_its_place",
    ),
    Fault(
        "pruning-deletes-what-runs",
        f"{_STORAGE}/journal.py",
        "over = [run for run in old if not self._is_written(run[1], run[3])]",
        "over = old",
        "tests/unit/test_journal.py::test_old_runs_go_by_number_and_age",
    ),
    Fault(
        "forks-lose-large-values",
        f"{_STORAGE}/journal.py",
        "self._blobs.share(number, new)",
        "self._blobs.share(new, new)",
        "tests/unit/test_journal.py::test_conversation_grows_by_what_is_new",
    ),
    Fault(
        "rollups-count-twice",
        f"{_STORAGE}/rollups.py",
        ("            self._merge(tenant, self._pending.pop(run, []))\n            self.begin(run, num_records)"),
        "            self._merge(tenant, self._pending.pop(run, []))",
        "tests/unit/test_rollups.py::test_rows_equal_a_plain_recomputation",
    ),
    Fault(
        "worst-passages-first",
        "src/pyagent/core/search.py",
        "key=lambda pair: (-pair[1], pair[0])",
        "key=lambda pair: (pair[1], pair[0])",
        "tests/unit/test_search.py::test_ranks_are_fused_by_reciprocals",
    ),
    Fault(
        "tenants-search-all",
        f"{_STORAGE}/search/runs.py",
        "if tenants is None or row.tenant in tenants:",
        "if True:",
        "tests/unit/test_search.py::test_tenants_are_apart",
    ),
    Fault(
        "deleted-runs-are-found",
        f"{_STORAGE}/search/runs.py",
        "gone = stamps.keys() - set(runs)",
        "gone = set[str]()",
        "tests/unit/test_search.py::test_runs_deleted_while_the_index_was_away_are_not_found",
    ),
)
