"""Faults that a test must notice: each a piece of source that stands exactly once, and what it becomes.

In Rust `FAULT` is true while the fault is put in, so that one build holds all of them. `tests` are given to pytest; in
Rust they run over the extension, as users do.
"""

from __future__ import annotations

from dataclasses import dataclass

_ENGINE = "src/pyagent/infrastructure/engine"
_SERVER = "src/pyagent/infrastructure/server"
_BACKENDS = "src/pyagent/infrastructure/backends"
_STRUCTURED = "src/pyagent/core/structured_output"
_SAMPLING = "rust_core/kernels/src/sampling"
_DRAWS = "tests/integration/test_sampling.py"
_CONSTANTS = "tests/unit/test_model_constants.py"


@dataclass(frozen=True, slots=True)
class Fault:
    """Replaces `old` by `new` in the file `path`; `tests` notice it."""

    name: str
    path: str
    old: str
    new: str
    tests: str

    @property
    def is_rust(self) -> bool:
        """Whether it needs a build."""
        return self.path.endswith(".rs")


FAULTS = (
    Fault(
        "conversation-key-ignores-roles",
        f"{_ENGINE}/sessions/turns.py",
        "fields = (message.role, text,",
        "fields = (text,",
        "tests/unit/test_sessions.py -k another",
    ),
    Fault(
        "conversation-key-ignores-tools",
        f"{_ENGINE}/sessions/turns.py",
        "msgspec.json.encode((tenant, tools, template_kwargs or None))",
        "msgspec.json.encode((tenant, [], template_kwargs or None))",
        "tests/unit/test_sessions.py -k another",
    ),
    Fault(
        "ledger-resizes-without-its-lock",
        f"{_ENGINE}/memory/ledger.py",
        "        with self._lock:\n            assert not reservation.is_released",
        "        if True:\n            assert not reservation.is_released",
        "tests/integration/test_ledger.py -k last_bytes",
    ),
    Fault(
        "tenant-is-dropped",
        f"{_ENGINE}/models/input_processor.py",
        "PrefixKey(tenant=request.origin.tenant,",
        'PrefixKey(tenant="",',
        "tests/integration/test_tenants.py -k prompt_of_another_key",
    ),
    Fault(
        "prompt-is-not-counted-for-the-repetition-penalty",
        f"{_ENGINE}/sampling/sampler.py",
        "sampler.observe_prompt(prompt_tokens)",
        "sampler.observe_prompt([])",
        f"{_DRAWS} -k 'greedy or repetition'",
    ),
    Fault(
        "logit-bias-is-ignored",
        f"{_ENGINE}/sampling/sampler.py",
        "logit_bias=list(params.logit_bias.items())",
        "logit_bias=[]",
        f"{_DRAWS} -k bias",
    ),
    Fault(
        "penalties-count-prompt-tokens-as-output",
        f"{_ENGINE}/sampling/sampler.py",
        "    if prompt_tokens and sampler.reads_prompt:\n        sampler.observe_prompt(prompt_tokens)",
        "    sampler.observe(prompt_tokens or [])",
        f"{_DRAWS} -k 'greedy or frequency'",
    ),
    Fault(
        "seed-is-ignored",
        f"{_ENGINE}/sampling/sampler.py",
        "seed = random.getrandbits(64) if params.seed is None else params.seed & (2**64 - 1)",
        "seed = random.getrandbits(64)",
        "tests/integration/test_native_texts.py -k seed_decides",
    ),
    Fault(
        "grammar-masks-are-left-out",
        f"{_ENGINE}/step_masks.py",
        "                masks[row] = bytes(view)",
        "                pass",
        "tests/integration/test_native_forms.py -k twenty",
    ),
    Fault(
        "deadline-of-the-engine-is-ignored",
        f"{_ENGINE}/scheduler/scheduler.py",
        "while self._deadlines and self._deadlines[0][0] <= self._clock():",
        "while self._deadlines and self._deadlines[0][0] <= 0:",
        "tests/unit/test_requests.py",
    ),
    Fault(
        "stop-strings-are-not-held-back-at-token-borders",
        "src/pyagent/core/stop_strings.py",
        "num_sent = num_held + len(text) - max(self._matched)",
        "num_sent = num_held + len(text)",
        "tests/unit/test_stop_strings.py",
    ),
    Fault(
        "halves-of-characters-are-sent",
        f"{_ENGINE}/tokens/detokenizer.py",
        "return self._utf8.decode(data)",
        'return data.decode(errors="replace")',
        "tests/unit/test_tokens.py -k character",
    ),
    Fault(
        "user-defined-markers-are-read-in-messages",
        f"{_ENGINE}/tokens/markers.py",
        "special | written",
        "special",
        "tests/unit/test_tokens.py -k 'control_tokens or marker'",
    ),
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
        "journal-lines-are-not-checked",
        "src/pyagent/infrastructure/storage/journal.py",
        "if len(line) <= _CHECK_BYTES or line[-_CHECK_BYTES:] != _CHECK % zlib.crc32(body):",
        "if len(line) <= _CHECK_BYTES:",
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
        "src/pyagent/core/chain/ordering.py",
        "return link.name, link.nth",
        "return link.name, 0",
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
        "parts-of-tags-are-told-as-text",
        "src/pyagent/core/dialects/source.py",
        'return source.take(self._held_at(source) - source.at), ""',
        'return source.take_rest(), ""',
        "tests/unit/dialects/test_parsers.py -k split",
    ),
    Fault(
        "top-p-keeps-one-token-too-many",
        f"{_SAMPLING}/filters.rs",
        "        self.mass += weight;\n        self.mass >= self.target",
        "        self.mass += weight;\n        self.mass - if FAULT { weight } else { 0.0 } >= self.target",
        f"{_DRAWS} -k top_p",
    ),
    Fault(
        "every-step-has-the-same-number",
        f"{_SAMPLING}/mod.rs",
        "uniform(self.params.seed, step)",
        "uniform(self.params.seed, if FAULT { 0 } else { step })",
        f"{_DRAWS} -k independent",
    ),
    Fault(
        "prompt-tokens-count-as-output",
        f"{_SAMPLING}/mod.rs",
        "self.seen.entry(*token).or_default().nearest = 1.0;",
        "{ let seen = self.seen.entry(*token).or_default(); seen.nearest = 1.0; if FAULT { seen.count += 1.0; } }",
        f"{_DRAWS} -k greedy",
    ),
    Fault(
        "logprobs-are-taken-at-the-temperature",
        f"{_SAMPLING}/mod.rs",
        "self.ranking.log_probabilities(logits,",
        "self.ranking.log_probabilities(&logits.iter().map(|x| x / if FAULT { self.params.temperature.max(0.5) } "
        "else { 1.0 }).collect::<Vec<_>>(),",
        f"{_DRAWS} -k logprobs",
    ),
    Fault(
        "masks-are-ignored",
        f"{_SAMPLING}/mod.rs",
        "if let Some(mask) = mask {",
        "if let Some(mask) = mask.filter(|_| !FAULT) {",
        "tests/integration/test_native_forms.py -k twenty",
    ),
    Fault(
        "callers-of-a-thread-pool-take-no-turns",
        "rust_core/kernels/src/thread_pool.rs",
        "let _turn = self.turns.take();",
        "let _turn = (!FAULT).then(|| self.turns.take());",
        "tests/integration/test_cpu_steps.py -k turns",
    ),
    Fault(
        "llama3-rope-scaling-is-ignored",
        "rust_core/kernels/src/elementwise/rope.rs",
        ".map(|frequency| llama3(frequency, *factor,",
        ".map(|frequency| llama3(frequency, if FAULT { 1.0 } else { *factor },",
        f"{_CONSTANTS} -k llama",
    ),
    Fault(
        "local-rope-base-is-the-global-one",
        "rust_core/engine/src/runner.rs",
        "config.local_rope_base as f32",
        "(if FAULT { config.rope_base } else { config.local_rope_base }) as f32",
        f"{_CONSTANTS} -k gemma3",
    ),
    Fault(
        "embedding-scale-is-a-hundredth-off",
        "rust_core/engine/src/forward.rs",
        "elementwise::scale(self.pass.isa, residual, config.embedding_scale)",
        "elementwise::scale(self.pass.isa, residual, config.embedding_scale * if FAULT { 1.01 } else { 1.0 })",
        f"{_CONSTANTS} -k gemma3",
    ),
    Fault(
        "attention-scale-is-the-heads",
        "rust_core/engine/src/config/hugging_face.rs",
        "attention_scale: (query_size as f32).powf(-0.5)",
        "attention_scale: (if FAULT { head_dim as f32 } else { query_size as f32 }).powf(-0.5)",
        f"{_CONSTANTS} -k gemma3",
    ),
    Fault(
        "windows-are-one-token-wider",
        "rust_core/engine/src/config.rs",
        "self.sliding_window.filter(|_| self.sliding_layers[layer])",
        "self.sliding_window.filter(|_| self.sliding_layers[layer]).map(|window| window + usize::from(FAULT))",
        f"{_CONSTANTS} -k mistral",
    ),
    Fault(
        "lost-sequences-are-committed",
        "rust_core/python/src/step.rs",
        "let committed = if is_there {",
        "let committed = if is_there || FAULT {",
        "tests/integration/test_cpu_steps.py -k released",
    ),
    Fault(
        "prefixes-are-one-token-too-long",
        "rust_core/cache/src/lookup.rs",
        "let num_tokens = num_common(self.entries.tokens(number), tokens);",
        "let num_tokens = num_common(self.entries.tokens(number), tokens) + usize::from(FAULT);",
        "tests/integration/test_partial_blocks.py tests/unit/test_block_pool.py",
    ),
    Fault(
        "other-tenants-blocks-are-found",
        "rust_core/cache/src/lookup.rs",
        "num_tokens > 0 && salt.sees(&entry.key.salt)",
        "num_tokens > 0 && (FAULT || salt.sees(&entry.key.salt))",
        "tests/integration/test_tenants.py tests/unit/test_block_pool.py",
    ),
    Fault(
        "pinned-pages-are-evicted",
        "rust_core/cache/src/marks.rs",
        "units.iter().for_each(|&unit| self.adjust(unit, |unit| unit.pins += 1));",
        "units.iter().for_each(|&unit| self.adjust(unit, |unit| unit.pins += u32::from(!FAULT)));",
        "tests/integration/test_hints.py -k pinned_prompt_outlives",
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
        "thoughts-go-a-token-beyond-their-budget",
        f"{_ENGINE}/thinking_budget.py",
        "text.num_reasoning_tokens >= self.num_tokens",
        "text.num_reasoning_tokens > self.num_tokens",
        "tests/integration/test_thinking_budget.py -k ends_at",
    ),
    Fault(
        "a-begun-answer-stands-inside-of-thoughts",
        f"{_ENGINE}/models/preprocessor.py",
        "        if not closing:\n",
        "        if closing:\n",
        "tests/integration/test_native_assistant_prefix.py -k no_thought",
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
        "runner-of-a-plugin-is-not-checked",
        "src/pyagent/core/runners/guarded.py",
        "if missing or not has_info:",
        "if False:",
        "tests/integration/test_runners.py -k fails_to_load",
    ),
    Fault(
        "pages-are-not-copied-where-sequences-part",
        f"{_ENGINE}/runners/paged.py",
        "lambda: self.copy_pages(self.pool.fork(parent, child))",
        "lambda: self.pool.fork(parent, child)",
        "tests/integration/test_runner_conformance.py -k pages",
    ),
    Fault(
        "scored-prompts-are-taken-from-the-cache",
        f"{_ENGINE}/request.py",
        "return None if self.scores is None or self.scores.is_complete else len(self.scores)",
        "return None",
        "tests/integration/test_prompt_logprobs.py -k cached_for_others",
    ),
    Fault(
        "prompt-tokens-are-scored-one-place-off",
        "rust_core/engine/src/prompt_scores.rs",
        "targets: &self.tokens[positions.start + 1..positions.end + 1],",
        "targets: &self.tokens[positions.start + usize::from(!FAULT)..positions.end + usize::from(!FAULT)],",
        "tests/integration/test_prompt_logprobs.py -k log_softmax",
    ),
    Fault(
        "answers-share-a-logits-function",
        f"{_ENGINE}/logits/row_processors.py",
        "replace(self, function=None)",
        "self",
        "tests/integration/test_logits_processors.py -k several",
    ),
    Fault(
        "moved-rows-are-not-told",
        f"{_ENGINE}/logits/batch_rows.py",
        "moved.append((len(left) - 1, free))",
        "pass",
        "tests/unit/test_logits_parts.py -k followed",
    ),
    Fault(
        "kept-logits-are-lent-again",
        f"{_ENGINE}/logits/scratch.py",
        "memory.append(0)",
        "memory.extend(b'')",
        "tests/unit/test_logits_parts.py -k kept",
    ),
    Fault(
        "greedy-requests-run-what-keeps-the-best-token",
        f"{_ENGINE}/logits/processors.py",
        "if not (is_greedy and one.brought.is_argmax_invariant)",
        "if True",
        "tests/integration/test_logits_processors.py -k greedy_requests",
    ),
    Fault(
        "batch-faults-tell-of-others",
        f"{_ENGINE}/logits/row_processors.py",
        'f"raised {type(error).__name__}" for row in rows',
        'f"raised {error!r}" for row in rows',
        "tests/integration/test_logits_faults.py -k ends_its_request_alone",
    ),
    Fault(
        "plugins-share-the-args-of-requests",
        f"{_ENGINE}/logits/row_processors.py",
        "deepcopy(self.args)",
        "self.args",
        "tests/integration/test_logits_processors.py -k args_are",
    ),
    Fault(
        "processors-run-in-any-order",
        f"{_ENGINE}/logits/step_logits.py",
        "for key in sorted(calls)]",
        "for key in calls]",
        "tests/unit/test_logits_parts.py -k order",
    ),
    Fault(
        "processors-bring-excluded-tokens-back",
        "rust_core/python/src/logits_rows.rs",
        "let is_excluded = *logit == f32::NEG_INFINITY;",
        "let is_excluded = !FAULT && *logit == f32::NEG_INFINITY;",
        "tests/integration/test_logits_processors.py -k excluded",
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
