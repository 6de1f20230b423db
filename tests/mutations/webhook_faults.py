"""Faults of webhooks: signatures, the outbox, the inbox, what may be reached, and who sees what."""

from __future__ import annotations

from fault import Fault

_CORE = "src/pyagent/core/webhooks"
_KEPT = "src/pyagent/infrastructure/storage/webhooks"
_TESTS = "tests/integration"

FAULTS = (
    Fault(
        "old-signatures-are-taken",
        f"{_CORE}/signing.py",
        "if abs(now - timestamp) > tolerance_seconds:",
        "if timestamp - now > tolerance_seconds:",
        "tests/unit/test_webhook_signing.py::test_what_is_not_right_is_refused",
    ),
    Fault(
        "the-id-is-not-signed",
        f"{_CORE}/signing.py",
        'hmac.digest(key, f"{message_id}.{timestamp}.".encode() + body',
        'hmac.digest(key, f"{timestamp}.".encode() + body',
        "tests/unit/test_webhook_signing.py::test_vectors_of_standard_webhooks_and_of_github",
    ),
    Fault(
        "githubs-unsigned-id-is-trusted",
        f"{_CORE}/signing.py",
        'return Signed(f"github-{sha256(body).hexdigest()}", None)',
        'return Signed(headers.get("x-github-delivery", ""), None)',
        "tests/unit/test_webhook_signing.py::test_vectors_of_standard_webhooks_and_of_github",
    ),
    Fault(
        "a-dead-process-keeps-its-lease",
        f"{_KEPT}/outbox.py",
        'if leased_by not in {"", own} and self._writers.is_alive(leased_by):',
        'if leased_by not in {"", own}:',
        f"{_TESTS}/test_webhooks.py::test_kill_9_loses_nothing",
    ),
    Fault(
        "a-message-is-settled-before-it-is-sent",
        "src/pyagent/infrastructure/webhooks/deliveries.py",
        "            answer = await self._sender.send(claim.url, claim.secrets, claim.id, claim.body)\n",
        "            self._webhooks.outbox.settle(claim, Answer(200), self._clock())\n"
        "            answer = await self._sender.send(claim.url, claim.secrets, claim.id, claim.body)\n",
        f"{_TESTS}/test_webhooks.py::test_kill_9_loses_nothing",
    ),
    Fault(
        "another-tenants-messages-are-replayed",
        f"{_KEPT}/outbox.py",
        '" WHERE e.tenant = ? AND m.id = ?"',
        '" WHERE e.tenant IN (?, e.tenant) AND m.id = ?"',
        f"{_TESTS}/test_webhooks.py::test_only_the_events_and_the_tenant_that_were_asked_for",
    ),
    Fault(
        "one-message-holds-up-all-for-days",
        f"{_KEPT}/outbox.py",
        'waits = "waiting" if attempts < self._schedule.num_ordered else "passed"',
        'waits = "waiting"',
        f"{_TESTS}/test_webhooks.py::test_a_message_that_is_never_taken_holds_up_the_others_for_minutes_alone",
    ),
    Fault(
        "a-message-that-comes-again-begins-another-run",
        f"{_KEPT}/inbox.py",
        "return before, False",
        'message_id = f"{message_id}+"',
        f"{_TESTS}/test_hooks.py::test_a_genuine_message_begins_one_run",
    ),
    Fault(
        "what-is-put-in-is-read-as-a-place",
        f"{_CORE}/incoming.py",
        "    return _PLACE.sub(value_at, template)",
        "    return _PLACE.sub(value_at, _PLACE.sub(value_at, template))",
        f"{_TESTS}/test_hooks.py::test_a_genuine_message_begins_one_run",
    ),
    Fault(
        "hooks-are-open-where-there-are-none",
        "src/pyagent/infrastructure/server/middleware/auth.py",
        "if self.has_hooks and path.startswith(HOOKS_PATH):",
        "if path.startswith(HOOKS_PATH):",
        f"{_TESTS}/test_hooks.py::test_only_hooks_that_there_are",
    ),
    Fault(
        "clients-sign-by-the-servers-variables",
        "src/pyagent/logic/agents/stream.py",
        "    if current_access().is_limited:",
        "    if not action.secret:",
        "tests/unit/test_agents_stream.py::test_signatures_are_verified_offline",
    ),
)
