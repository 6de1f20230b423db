"""Faults in the Rust core; they run over the extension, as users do."""

from __future__ import annotations

from fault import Fault

_SAMPLING = "rust_core/kernels/src/sampling"
_DRAWS = "tests/integration/test_sampling.py"
_CONSTANTS = "tests/unit/test_model_constants.py"

FAULTS = (
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
        "rust_core/kernels/src/elementwise/rope/scaling.rs",
        ".map(|frequency| llama3(frequency, *factor,",
        ".map(|frequency| llama3(frequency, if FAULT { 1.0 } else { *factor },",
        f"{_CONSTANTS} -k llama",
    ),
    Fault(
        "local-rope-base-is-the-global-one",
        "rust_core/engine/src/config.rs",
        "table(self.local_rope_base,",
        "table(if FAULT { self.rope_base } else { self.local_rope_base },",
        f"{_CONSTANTS} -k gemma3",
    ),
    Fault(
        "cosines-are-not-multiplied-by-the-attention-factor",
        "rust_core/kernels/src/elementwise/rope.rs",
        "angle.cos() as f32 * self.attention_factor",
        "angle.cos() as f32 * if FAULT { 1.0 } else { self.attention_factor }",
        f"{_CONSTANTS} -k yarn",
    ),
    Fault(
        "short-texts-factors-are-always-taken",
        "rust_core/engine/src/config/hugging_face/rope.rs",
        "let key = if longest > original {",
        "let key = if !FAULT && longest > original {",
        f"{_CONSTANTS} -k longrope",
    ),
    Fault(
        "every-layer-is-rotated",
        "rust_core/engine/src/forward.rs",
        "if !config.rotary_layers[index] {",
        "if !FAULT && !config.rotary_layers[index] {",
        f"{_CONSTANTS} -k smollm3",
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
        "prompt-tokens-are-scored-one-place-off",
        "rust_core/engine/src/prompt_scores.rs",
        "targets: &self.tokens[positions.start + 1..positions.end + 1],",
        "targets: &self.tokens[positions.start + usize::from(!FAULT)..positions.end + usize::from(!FAULT)],",
        "tests/integration/test_prompt_logprobs.py -k log_softmax",
    ),
    Fault(
        "schedules-stand-still",
        f"{_SAMPLING}/schedule.rs",
        "let done = step as f64 / tokens as f64;",
        "let done = if FAULT { 0.0 } else { step as f64 / tokens as f64 };",
        "tests/unit/test_sampling_schedules.py",
    ),
    Fault(
        "schedules-end-a-token-early",
        f"{_SAMPLING}/schedule.rs",
        "    if step >= tokens {\n        return 1.0;",
        "    if step + u64::from(FAULT) >= tokens {\n        return 1.0;",
        "tests/unit/test_sampling_schedules.py",
    ),
    Fault(
        "penalties-skip-their-warm-up",
        f"{_SAMPLING}/schedule.rs",
        "None => way(step, warmup) as f32,",
        "None => if FAULT { 1.0 } else { way(step, warmup) as f32 },",
        "tests/integration/test_sampling_schedules.py -k penalties",
    ),
    Fault(
        "prohibitions-outlast-their-tokens",
        f"{_SAMPLING}/schedule.rs",
        "_ if step >= tokens => 0.0,",
        "_ if step >= tokens => if FAULT { penalty } else { 0.0 },",
        "tests/integration/test_sampling_schedules.py -k bad_words",
    ),
    Fault(
        "processed-rows-are-all-first-tokens",
        "rust_core/engine/src/runner.rs",
        "sample.state.prepare(row, sample.mask, sample.step)",
        "sample.state.prepare(row, sample.mask, if FAULT { 0 } else { sample.step })",
        "tests/integration/test_logits_processors.py -k schedules",
    ),
    Fault(
        "min-p-ignores-the-entropy",
        f"{_SAMPLING}/filters.rs",
        "(-f64::from(params.min_p_entropy) * entropy).exp()",
        "(if FAULT { 0.0 } else { -f64::from(params.min_p_entropy) * entropy }).exp()",
        "tests/unit/test_sampling_filters.py -k min_p",
    ),
    Fault(
        "top-k-ignores-the-entropy",
        f"{_SAMPLING}/filters.rs",
        "((f64::from(factor) * entropy.exp()).round() as usize).max(1)",
        "((f64::from(factor) * if FAULT { 1.0 } else { entropy.exp() }).round() as usize).max(1)",
        "tests/unit/test_sampling_filters.py",
    ),
    Fault(
        "processors-bring-excluded-tokens-back",
        "rust_core/python/src/logits_rows.rs",
        "let is_excluded = *logit == f32::NEG_INFINITY;",
        "let is_excluded = !FAULT && *logit == f32::NEG_INFINITY;",
        "tests/integration/test_logits_processors.py -k excluded",
    ),
)
