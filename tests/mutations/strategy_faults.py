"""Faults in the strategies: bounds, what one failure takes with it, who wins."""

from __future__ import annotations

from fault import Fault

_STRATEGIES = "src/pyagent/logic/strategies"
_TESTS = "tests/unit/test_strategies.py"

FAULTS = (
    Fault(
        "strategies-call-without-end",
        f"{_STRATEGIES}/calls.py",
        "if self.num_calls + self.num_held >= self.max_calls:",
        "if self.num_calls + self.num_held >= 10 * self.max_calls:",
        f"{_TESTS}::test_search_keeps_to_its_calls",
    ),
    Fault(
        "answers-tokens-are-not-kept",
        f"{_STRATEGIES}/calls.py",
        "held = self.budget.reserve(ask.num_tokens + room)",
        "held = self.budget.reserve(0)",
        f"{_TESTS}::test_search_keeps_to_its_tokens_and_still_answers",
    ),
    Fault(
        "one-debater-fails-them-all",
        f"{_STRATEGIES}/calls.py",
        "if isinstance(error, _ENDS) or self.context.deadline.is_past:",
        "if isinstance(error, PyAgentError) or self.context.deadline.is_past:",
        f"{_TESTS}::test_debater_that_fails_in_any_way_takes_no_other_with_it",
    ),
    Fault(
        "scores-of-all-uses-are-one-row",
        f"{_STRATEGIES}/calls.py",
        "self.context.report(score, series=self._series)",
        "self.context.report(score)",
        "tests/unit/test_strategies_in_runs.py::test_one_use_after_another_is_no_stall",
    ),
    Fault(
        "doubts-are-asked-again-uncounted",
        f"{_STRATEGIES}/calls.py",
        "if sampling.seed is None:",
        "if sampling.seed is None and not sampling:",
        "tests/unit/test_strategies_in_runs.py::test_doubtful_answers_are_not_asked_again_uncounted",
    ),
    Fault(
        "conversations-change-under-the-journal",
        f"{_STRATEGIES}/reflection.py",
        "said = await calls.ask(Ask(messages=list(messages), sampling=GREEDY))",
        "said = await calls.ask(Ask(messages=messages, sampling=GREEDY))",
        f"{_TESTS}::test_reflection_grows_one_conversation_at_its_end",
    ),
    Fault(
        "revisions-win-by-being-last",
        f"{_STRATEGIES}/reflection.py",
        "return max(judged, key",
        "return max(judged[::-1], key",
        f"{_TESTS}::test_reflection_ends_at_its_bound_with_the_best_draft",
    ),
    Fault(
        "ties-forget-the-rounds-before",
        f"{_STRATEGIES}/settling.py",
        "key=lambda each: -given[each[0]]",
        "key=lambda each: 0 * given[each[0]]",
        f"{_TESTS}::test_tie_goes_to_the_answer_given_most_often",
    ),
    Fault(
        "pruned-thoughts-are-followed",
        f"{_STRATEGIES}/tree_of_thoughts.py",
        "is_kept = value.score >= self.bounds.min_score",
        "is_kept = True",
        f"{_TESTS}::test_search_where_nothing_is_good_enough_ends_and_answers",
    ),
)
