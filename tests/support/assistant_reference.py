"""Assistants of Gemma 4 by transformers: random ones, and what they draft for a text as transformers has them asked."""
# pyright: basic

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from support.gemma4_models import CONFIGS, random_gemma4, scale_weights

NUM_DRAFTS = 3


class Assisted:
    """A model with an assistant, of random weights, in folders; what they compute is in float64."""

    def __init__(self, form: str, folder: Path, *, has_clusters: bool = False) -> None:
        import torch
        from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM

        target = random_gemma4(form, folder / "model", vocab_size=256, vocab_size_per_layer_input=256)
        own = {
            "vocab_size": 256,
            "vocab_size_per_layer_input": 0,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_kv_shared_layers": 3,
            "num_attention_heads": 2,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": False,
            "use_double_wide_mlp": False,
        }
        torch.manual_seed(12)
        config = Gemma4AssistantConfig(
            text_config={**CONFIGS[form], **own, "model_type": "gemma4_text"},
            backbone_hidden_size=64,
            use_ordered_embeddings=has_clusters,
            num_centroids=16,
            centroid_intermediate_top_k=4,
        )
        config._attn_implementation = "eager"
        config.text_config.num_kv_shared_layers = 0  # that all are shared is an error of transformers 5.23
        assistant = Gemma4AssistantForCausalLM(config).eval()
        config.text_config.num_kv_shared_layers = 3
        for layer in assistant.model.layers:
            layer.self_attn.is_kv_shared_layer = True
            del layer.self_attn.k_proj, layer.self_attn.v_proj, layer.self_attn.k_norm
        scale_weights(assistant)
        if has_clusters:
            assistant.masked_embedding.token_ordering.copy_(torch.randperm(256))
        assistant.save_pretrained(folder / "assistant")
        self.window = CONFIGS[form]["sliding_window"]
        self.target, self.assistant = copy.deepcopy(target).double(), assistant.double()
        kinds = target.config.layer_types[: len(target.model.layers) - target.config.num_kv_shared_layers]
        for kind in set(kinds):  # where no layer shares, it tells no keys and values
            last = len(kinds) - 1 - kinds[::-1].index(kind)
            self.target.model.layers[last].self_attn.store_full_length_kv = True
        self.target.set_experts_implementation("eager")
        self.assistant.generation_config.num_assistant_tokens = NUM_DRAFTS

    def draft(self, tokens: list[int]) -> tuple[list[int], Any]:
        """Return what is drafted after a text whose last token was just sampled, and the logits, [drafts, vocab]."""
        import torch
        from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator

        log = torch.tensor([tokens])
        settings = copy.deepcopy(self.target.generation_config)
        settings.max_length = len(tokens) + 100
        generator = SinglePositionMultiTokenCandidateGenerator(
            self.assistant, self.target.get_input_embeddings(), settings
        )
        with torch.no_grad():
            past = self.target(log[:, :-2], use_cache=True).past_key_values
            outputs = self.target(
                log[:, -2:-1],
                past_key_values=past,
                output_hidden_states=True,
                return_shared_kv_states=True,
            )
            position = len(tokens) - 1
            oldest = (position + 1 - self.window) // 16 * 16  # of the pages that the next token sees
            if position - self.window < oldest:
                keys, values = outputs.shared_kv_states["sliding_attention"]
                most = position - oldest
                outputs.shared_kv_states["sliding_attention"] = keys[:, :, -most:], values[:, :, -most:]
            found, logits = generator.get_candidates(log, {}, outputs, is_first_iteration=False, n_last_matches=0)
        return found[0, len(tokens) :].tolist(), logits[0].numpy()
