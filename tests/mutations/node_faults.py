"""Faults in how nodes of a cluster use each other: routing, adverts, membership, answering peers, effects, metrics."""

from __future__ import annotations

from fault import Fault

_CLUSTER = "src/pyagent/infrastructure/cluster"
_PEERS = "src/pyagent/core/cluster/peers.py"
_POLICIES = "src/pyagent/core/cluster/routing.py"
_ROUTING = "tests/unit/test_cluster_routing.py"
_AGENTS = "tests/integration/test_cluster_agents.py"

FAULTS = (
    Fault(
        "requests-of-peers-go-in-circles",
        _PEERS,
        "    _is_for_peer.set(True)",
        "    _is_for_peer.set(False)",
        f"{_ROUTING} -k requests_of_peers",
    ),
    Fault(
        "burst-is-not-counted-as-waiting",
        _PEERS,
        "        self.num_sent += 1",
        "        self.num_sent += 0",
        f"{_ROUTING} -k burst",
    ),
    Fault(
        "prompt-on-its-way-is-forgotten",
        _PEERS,
        "        self.sent.add(keys)",
        "        self.sent.add(())",
        f"{_ROUTING} -k second_request_follows",
    ),
    Fault(
        "prompts-before-it-do-not-count",
        _POLICIES,
        "    ahead = node.num_prompt_tokens_left",
        "    ahead = 0",
        f"{_ROUTING} -k cold_prompt_goes_past",
    ),
    Fault(
        "warm-prompt-waits-for-all-before-it",
        _POLICIES,
        "    if own <= _SHORT_TOKENS:",
        "    if own < 0:",
        f"{_ROUTING} -k formula",
    ),
    Fault(
        "old-load-is-taken-for-new",
        _PEERS,
        "        if load.sequence <= self.load.sequence:",
        "        if load.sequence < 0:",
        f"{_ROUTING} -k old_loads",
    ),
    Fault(
        "load-of-a-former-start-is-kept",
        _PEERS,
        "        self.is_up = True\n        self.tell(IDLE)",
        "        self.is_up = True",
        f"{_ROUTING} -k old_loads",
    ),
    Fault(
        "peer-without-the-model-is-asked",
        _PEERS,
        "if name in peers and peers[name].has(model)}",
        "if name in peers and model}",
        f"{_ROUTING} -k without_the_model",
    ),
    Fault(
        "private-prompts-are-told",
        _PEERS,
        "        if not request.private:\n            self.new_prefixes",
        "        if True:\n            self.new_prefixes",
        f"{_ROUTING} -k private",
    ),
    Fault(
        "conversation-of-another-tenant-sticks",
        _PEERS,
        "    return (request.origin.tenant, belongs) if belongs else None",
        '    return ("", belongs) if belongs else None',
        f"{_ROUTING} -k conversation",
    ),
    Fault(
        "links-that-spend-keys-are-offered",
        f"{_CLUSTER}/advertising.py",
        "isinstance(link, EngineLink) or _is_own_server(link)]",
        "isinstance(link, EngineLink) or bool(link)]",
        "tests/unit/test_cluster_offers.py",
    ),
    Fault(
        "what-waits-for-kv-takes-no-place",
        f"{_CLUSTER}/advertising.py",
        "num_placed = min(num_arriving, num_free)",
        "num_placed = 0",
        "tests/integration/test_cluster_moves.py -k wait_for_kv",
    ),
    Fault(
        "own-file-says-nothing-of-a-models-size",
        f"{_CLUSTER}/placing.py",
        "or file_bytes or",
        "or",
        "tests/integration/test_cluster_placement.py -k own_file",
    ),
    Fault(
        "copies-keep-a-model-that-one-refused",
        "src/pyagent/infrastructure/engine/subprocess/copies.py",
        "            await self._give_up(model, results)",
        "            pass",
        "tests/integration/test_data_parallel.py -k placed_in_none",
    ),
    Fault(
        "prompts-that-are-computed-count-on",
        "src/pyagent/infrastructure/engine/subprocess/supervisor.py",
        "                    self._owner.computed(request)",
        "                    pass",
        "tests/integration/test_data_parallel.py -k prompts_whose",
    ),
    Fault(
        "what-waits-for-a-dead-node-waits-on",
        f"{_CLUSTER}/members.py",
        "            self._transport.disconnect(member.id)  # what waits for an answer of it waits no more\n",
        "",
        "tests/integration/test_cluster_silence.py",
    ),
    Fault(
        "lost-run-is-begun-elsewhere",
        f"{_CLUSTER}/peer_backend.py",
        "                failed.has_begun = run.has_begun",
        "                failed.has_begun = False",
        f"{_AGENTS} -k failed_run",
    ),
    Fault(
        "run-that-failed-on-a-peer-is-begun-elsewhere",
        f"{_CLUSTER}/peer_backend.py",
        "                error.has_begun = run.has_begun",
        "                error.has_begun = False",
        f"{_AGENTS} -k failed_run",
    ),
    Fault(
        "run-begins-without-leave",
        f"{_CLUSTER}/answering.py",
        "                await self._ask_leave(peer_id, ask.run)",
        "                pass",
        f"{_AGENTS} -k nobody_waits",
    ),
    Fault(
        "leave-is-given-twice",
        f"{_CLUSTER}/effects.py",
        "run.peer_id != peer_id or run.has_begun:",
        "run.peer_id != peer_id:",
        f"{_AGENTS} -k leave",
    ),
    Fault(
        "time-of-a-run-is-divided-among-nodes",
        "src/pyagent/core/chain/failover.py",
        "or num_links == 1 or self._has_effects:",
        "or num_links == 1:",
        f"{_AGENTS} -k slow_run",
    ),
    Fault(
        "span-of-a-peer-begins-a-trace-of-its-own",
        "src/pyagent/infrastructure/observability/answer_spans.py",
        "outer = TraceContextTextMapPropagator().extract(trace_headers())",
        "outer = TraceContextTextMapPropagator().extract({})",
        "tests/integration/test_cluster_traces.py -k engine_of_a_peer",
    ),
    Fault(
        "series-of-gone-peers-stay",
        "src/pyagent/infrastructure/observability/cluster_metrics.py",
        'if peer.state in {"alive", "suspect"}][:_MAX_PEERS]',
        "if peer.state][:_MAX_PEERS]",
        "tests/integration/test_cluster_metrics.py -k while_they_live",
    ),
    Fault(
        "stream-is-sent-beyond-its-credit",
        f"{_CLUSTER}/serving.py",
        "        while self._credit <= 0:",
        "        while self._credit <= -1000:",
        "tests/integration/test_cluster_transport.py -k slow_reader",
    ),
    Fault(
        "own-death-is-not-contradicted",
        "src/pyagent/core/cluster/claims.py",
        "        if incarnation >= self.me.incarnation:\n            self.health.note(1)",
        "        if incarnation > MAX_INCARNATION:\n            self.health.note(1)",
        "tests/unit/test_membership.py -k own_death",
    ),
)
