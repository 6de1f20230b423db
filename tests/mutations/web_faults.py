"""Faults in searching the web, in essays and in quotes: what is reached, told as a fact, and left to a model."""

from __future__ import annotations

from fault import Fault

_WEB = "src/pyagent/infrastructure/web"
_ESSAY = "src/pyagent/logic/web_essay"
_AGENTS = "src/pyagent/logic/agents"
_RULES = "tests/unit/test_web_essay.py"
_SITE = "tests/integration/test_web_search_essay.py"
_QUOTES = "tests/unit/test_summary_quotes.py"

FAULTS = (
    Fault(
        "redirects-are-not-checked",
        f"{_WEB}/fetching.py",
        "                    await check(url)\n",
        "                    if _ == 0:\n                        await check(url)\n",
        f"{_SITE}::test_page_that_cannot_be_read_says_why",
    ),
    Fault(
        "bombs-unpack-whole",
        f"{_WEB}/fetching.py",
        "return Page(answer.status, content_type, bytes(body[:max_bytes]), location, is_cut=len(body) > max_bytes)",
        "return Page(answer.status, content_type, bytes(body), location)",
        f"{_SITE}::test_huge_and_odd_pages_are_bounded",
    ),
    Fault(
        "private-runs-search",
        f"{_WEB}/tools.py",
        "    if context.run.is_private:",
        "    if not context:",
        f"{_SITE}::test_private_run_does_not_search",
    ),
    Fault(
        "first-rule-of-robots-decides",
        f"{_WEB}/robots.py",
        "key=lambda rule: (len(rule.pattern), rule.is_allowed)",
        "key=lambda rule: rule.is_allowed",
        "tests/unit/test_robots.py::test_longest_rule_decides_and_allowing_wins_a_tie",
    ),
    Fault(
        "pages-instruct-the-model",
        f"{_ESSAY}/sources.py",
        '        lines[place] = " " * len(lines[place])',
        "        lines[place] = lines[place]",
        f"{_SITE}::test_hostile_page_does_not_reach_the_model",
    ),
    Fault(
        "hidden-words-are-read",
        "src/pyagent/logic/reading/visible.py",
        "    return bool(style) and bool(",
        "    return not style and bool(",
        f"{_SITE}::test_hostile_page_does_not_reach_the_model",
    ),
    Fault(
        "disputed-statements-are-facts",
        f"{_ESSAY}/notes.py",
        "each.stands_alone and (each.source, each.start) not in checked.disputed",
        "each.stands_alone",
        f"{_RULES}::test_disputed_statements_are_not_told_as_facts",
    ),
    Fault(
        "figures-of-other-years-are-compared",
        f"{_ESSAY}/checking.py",
        "    return not is_changing or first.years == second.years",
        "    return True",
        f"{_RULES}::test_statements_are_compared_by_rules",
    ),
    Fault(
        "last-digits-are-not-rounded",
        f"{_ESSAY}/checking.py",
        "high.value - low.value <= max(first.tolerance, second.tolerance)",
        "high.value == low.value",
        f"{_RULES}::test_statements_are_compared_by_rules",
    ),
    Fault(
        "model-may-deny-what-a-page-says",
        f"{_ESSAY}/support.py",
        "and _found(NEGATION, sentence) == _found(NEGATION, quote)",
        "and True",
        f"{_RULES}::test_sentence_is_held_to_its_quote",
    ),
    Fault(
        "model-may-leave-out-clauses",
        f"{_ESSAY}/support.py",
        "len(said) >= _MIN_KEPT * len(meant)",
        "len(said) >= 0.3 * len(meant)",
        f"{_RULES}::test_words_of_doubt_are_kept",
    ),
    Fault(
        "quotes-have-other-figures",
        f"{_AGENTS}/quotes.py",
        "if fits and has_figures and wanted and score > best_score:",
        "if fits and wanted and score > best_score:",
        f"{_QUOTES}::test_point_that_no_sentence_says_has_no_quote",
    ),
    Fault(
        "pages-of-a-pdf-are-one-off",
        f"{_AGENTS}/quotes.py",
        "bisect_right(document.page_starts, begin.start) if",
        "bisect_right(document.page_starts, begin.start) - 1 if",
        f"{_QUOTES}::test_pdf_is_quoted_with_its_page",
    ),
    Fault(
        "said-charset-goes-first",
        "src/pyagent/logic/reading/charsets.py",
        '    yield "utf-8"\n',
        "",
        f"{_QUOTES}::test_charset_is_found_whatever_is_said",
    ),
)
