"""Faults in what reads and bounds the text of answers: dialects, structured output, stop strings."""

from __future__ import annotations

from fault import Fault

_STRUCTURED = "src/pyagent/core/structured_output"

FAULTS = (
    Fault(
        "stop-strings-are-not-held-back-at-token-borders",
        "src/pyagent/core/stop_strings.py",
        "num_sent = num_held + len(text) - max(self._matched)",
        "num_sent = num_held + len(text)",
        "tests/unit/test_stop_strings.py",
    ),
    Fault(
        "parts-of-tags-are-told-as-text",
        "src/pyagent/core/dialects/source.py",
        'return source.take(self._held_at(source) - source.at), ""',
        'return source.take_rest(), ""',
        "tests/unit/dialects/test_parsers.py -k split",
    ),
    Fault(
        "half-a-tag-is-given-out-as-text",
        "src/pyagent/core/dialects/source.py",
        "                return start\n",
        "                return num_chars\n",
        "tests/unit/dialects/test_parsers.py -k hermes",
    ),
    Fault(
        "a-missing-comma-in-arguments-stays-missing",
        "src/pyagent/core/dialects/json_writer.py",
        'before = ", "\n',
        "pass\n",
        "tests/unit/dialects/test_wrong_calls.py -k means",
    ),
    Fault(
        "arguments-that-end-early-are-left-open",
        "src/pyagent/core/dialects/literals.py",
        "return text + self.writer.complete()",
        "return text",
        "tests/unit/dialects/test_wrong_calls.py -k means",
    ),
    Fault(
        "tags-end-an-answer-in-its-midst",
        "src/pyagent/core/dialects/text.py",
        "self.raw.append(source.take_space())\n        reasoning",
        'self.raw = [""]\n        reasoning',
        "tests/unit/dialects/test_parsers.py -k granite",
    ),
    Fault(
        "built-in-dialects-come-before-those-of-plugins",
        "src/pyagent/core/dialects/registry.py",
        "for dialect in (*brought, *DIALECTS):",
        "for dialect in (*DIALECTS, *brought):",
        "tests/unit/dialects/test_registry.py",
    ),
    Fault(
        "text-after-an-emulated-call-is-lost",
        "src/pyagent/core/emulation/dialect.py",
        "self._content.append(parsed.content)",
        'self._content.append("" if self._has_tag else parsed.content)',
        "tests/unit/test_emulation.py -k text_after",
    ),
    Fault(
        "answers-are-checked-on-the-event-loop",
        f"{_STRUCTURED}/work.py",
        "    _enqueue(queued, tenant)\n",
        "    queued.run()\n",
        "tests/integration/test_link_formats.py -k chain_holds",
    ),
    Fault(
        "checks-of-tenants-wait-for-each-other",
        f"{_STRUCTURED}/work.py",
        "    _enqueue(queued, tenant)\n",
        '    _enqueue(queued, "")\n',
        "tests/integration/test_link_formats.py -k own_tenant",
    ),
    Fault(
        "check-past-its-deadline-is-run",
        f"{_STRUCTURED}/work.py",
        "if not self.result.set_running_or_notify_cancel():",
        "if not self.result.cancelled() and not self.result.set_running_or_notify_cancel():",
        "tests/integration/test_link_formats.py -k own_tenant",
    ),
    Fault(
        "check-is-not-given-up",
        f"{_STRUCTURED}/work.py",
        "        queued.work.is_given_up = True\n",
        "        pass\n",
        "tests/integration/test_link_formats.py -k waits_for_ends",
    ),
)
