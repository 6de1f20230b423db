"""Faults in the server, the chain and its backends, and what they keep."""

from __future__ import annotations

from fault import Fault

_SERVER = "src/pyagent/infrastructure/server"
_BACKENDS = "src/pyagent/infrastructure/backends"

FAULTS = (
    Fault(
        "wrong-keys-are-let-in",
        f"{_SERVER}/api_keys.py",
        "hmac.compare_digest(given, key.secret)",
        "hmac.compare_digest(given[:1], key.secret[:1])",
        "tests/integration/test_server_doors.py -k keys_are_needed",
    ),
    Fault(
        "heads-are-not-bounded",
        f"{_SERVER}/header_timeout.py",
        "MAX_HEAD_BYTES = 65_536",
        "MAX_HEAD_BYTES = 6_553_600",
        "tests/integration/test_server_security.py -k heads_are_bounded",
    ),
    Fault(
        "journal-records-are-not-checked",
        "src/pyagent/infrastructure/storage/record_codec.py",
        "if zlib.crc32(body).to_bytes(_CHECK_BYTES) != record[:_CHECK_BYTES]:",
        "if len(record) < _CHECK_BYTES:",
        "tests/unit/test_journal.py -k damage",
    ),
    Fault(
        "chain-asks-its-links-backwards",
        "src/pyagent/core/chain/ordering.py",
        "            return list(links)",
        "            return list(links)[::-1]",
        "tests/unit/test_chain.py -k 'first_link or fails_over'",
    ),
    Fault(
        "private-requests-go-anywhere",
        "src/pyagent/core/chain/ordering.py",
        "if request.private and not",
        "if False and not",
        "tests/unit/test_chain.py -k private",
    ),
    Fault(
        "breaker-opens-one-failure-late",
        "src/pyagent/core/resilience/breaker.py",
        "self._failures >= self.policy.num_failures",
        "self._failures > self.policy.num_failures",
        "tests/unit/test_breaker.py",
    ),
    Fault(
        "deadline-of-a-call-is-not-kept",
        "src/pyagent/core/resilience/deadline.py",
        "        if math.isinf(self.at):\n            return await work",
        "        return await work",
        "tests/unit/test_breaker.py tests/unit/test_chain.py -k deadline",
    ),
    Fault(
        "events-are-split-at-any-line",
        "src/pyagent/infrastructure/backends/sse.py",
        "            if not line:\n                if self._data:",
        "            if not line or self._data:\n                if self._data:",
        "tests/unit/test_sse.py",
    ),
    Fault(
        "kept-answers-are-shared-between-clients",
        "src/pyagent/core/response_cache/cache.py",
        "origin=Origin() if self.between_clients else",
        "origin=Origin() if True else",
        "tests/unit/test_response_cache.py -k 'told_apart or clients_share'",
    ),
    Fault(
        "keys-see-the-counts-of-all",
        f"{_SERVER}/admin_routes.py",
        "[msgspec.structs.replace(model, pages=None) for model in models]",
        "models",
        "tests/integration/test_tenants.py -k how_much_another_asks",
    ),
    Fault(
        "plugins-name-their-backends-as-they-like",
        "src/pyagent/core/plugin_checks.py",
        'if not isinstance(name, str) or name.partition(":")[0] != scheme:',
        "if not isinstance(name, str):",
        "tests/unit/test_capabilities.py -k named_after_its_scheme",
    ),
    Fault(
        "links-of-one-name-owe-their-turns-together",
        "src/pyagent/core/chain/balancing.py",
        "return self.name, self.nth",
        "return self.name, 0",
        "tests/unit/test_chain_limits.py -k several_links",
    ),
    Fault(
        "frames-have-no-bound",
        "src/pyagent/infrastructure/wire/codec.py",
        "if len(frame) > self.max_bytes:",
        "if False:",
        "tests/unit/test_wire.py -k bound",
    ),
    Fault(
        "hot-schedules-go-to-servers-without-any",
        "src/pyagent/infrastructure/backends/openai.py",
        '*("temperature_schedule", "penalty_schedule", "top_k_entropy", "min_p_entropy"),',
        '*("penalty_schedule", "top_k_entropy", "min_p_entropy"),',
        "tests/integration/test_sampling_schedules.py -k other_servers",
    ),
    Fault(
        "answers-so-far-keep-what-is-void",
        "src/pyagent/core/backends.py",
        "                index_to_text.clear()",
        "                pass",
        "tests/integration/test_engine_outputs.py -k anew",
    ),
    Fault(
        "flat-logprobs-of-all-answers-are-mixed",
        "src/pyagent/core/backends.py",
        "for delta in self.deltas if delta.index == index for entry",
        "for delta in self.deltas for entry",
        "tests/integration/test_engine_outputs.py -k flat",
    ),
    Fault(
        "first-answer-of-a-form-is-not-checked",
        f"{_BACKENDS}/openai_server_forms.py",
        "            await check_answer(held, request, self._name, deadline)\n",
        "            pass\n",
        "tests/integration/test_link_formats.py -k leaves_a_form_out",
    ),
    Fault(
        "result-of-a-tool-goes-to-the-first-call",
        f"{_BACKENDS}/openai_requests.py",
        'name in {None, "", call.function.name}',
        "True",
        "tests/integration/test_link_formats.py -k id_of_its_call",
    ),
    Fault(
        "input-of-a-custom-tool-is-lost",
        f"{_SERVER}/openai/replies.py",
        "            pieces += self._last_pieces(delta.index) if delta.finish_reason else []\n",
        "",
        "tests/integration/test_custom_tools.py -k another_servers",
    ),
)
