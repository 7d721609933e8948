"""The network of stepsnet behind the calls of the transformers library.

Legend: B batch, T new tokens, S all tokens that keys are there for, C channels, H heads, V tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin, PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from stepsnet.blocks.attention import TextContext, attend
from stepsnet.blocks.layers import linear, start_linear
from stepsnet.integrations.transformers.configuration import StepsTransformerConfig


@dataclass
class LibraryCache:
    """The library's cache behind the two names that our blocks know. Its layers are our blocks, each at its step's width."""

    cache: Cache

    @property
    def length(self) -> int:
        return self.cache.get_seq_length()

    def extend(self, block: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.cache.update(k, v, block)


@dataclass
class EagerAttention:
    """Attention written out, which keeps its weights; the library's mask is added to the scores."""

    weights: list[Tensor] = field(default_factory=list)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores + mask
        weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
        self.weights.append(weights)
        return weights @ v


class StepsTransformerPreTrainedModel(PreTrainedModel):
    """What both models below have in common."""

    config_class = StepsTransformerConfig
    config: StepsTransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["Block"]  # noqa: RUF012  # as the library declares it
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Every module of ours starts itself; the library keeps it from touching what has been loaded."""
        reset = getattr(module, "reset_parameters", None)
        if type(module) is nn.Linear:
            start_linear(module)
        elif callable(reset):
            reset()


class StepsTransformerModel(StepsTransformerPreTrainedModel):
    """Token ids to hidden states."""

    def __init__(self, config: StepsTransformerConfig) -> None:
        super().__init__(config)
        self.network = config.build()
        self.gradient_checkpointing = False
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module:
        return self.network.embed

    def set_input_embeddings(self, value: nn.Module) -> None:
        assert isinstance(value, nn.Embedding)
        self.network.embed = value
        self.network.vocab_size = value.num_embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **_others: Any,
    ) -> BaseModelOutputWithPast | tuple[Any, ...]:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
        embedded: Tensor = self.network.embed(input_ids) if inputs_embeds is None else inputs_embeds
        checkpointing = self.gradient_checkpointing and self.training
        # Checkpointed blocks run twice and would enter their keys twice.
        use_cache = (self.config.use_cache if use_cache is None else use_cache) and not checkpointing
        cache = DynamicCache(config=self.config) if use_cache and past_key_values is None else past_key_values
        past = cache.get_seq_length() if cache is not None else 0
        if position_ids is None:
            position_ids = torch.arange(past, past + embedded.shape[1], device=embedded.device)[None]
        mask = create_causal_mask(
            config=self.config, inputs_embeds=embedded, attention_mask=attention_mask, past_key_values=cache, position_ids=position_ids
        )
        assert mask is None or isinstance(mask, Tensor)  # the third kind is for flex attention, which is not offered here
        eager = EagerAttention() if self.config._attn_implementation == "eager" else None
        context = TextContext(
            self.network.rotary_tables(position_ids), mask, LibraryCache(cache) if cache is not None else None, eager or attend
        )
        self.network.set_grad_checkpointing(self.gradient_checkpointing)
        wants_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        if wants_states:
            hidden, states = self.network.net.walk(embedded, context)
        else:
            hidden, states = self.network.net(embedded, context), []
        hidden = self.network.norm(hidden)
        wants_weights = self.config.output_attentions if output_attentions is None else output_attentions
        output = BaseModelOutputWithPast(
            last_hidden_state=hidden,
            past_key_values=cache if use_cache else None,
            hidden_states=(embedded, *states[:-1], hidden) if wants_states else None,  # type: ignore[arg-type]  # FloatTensor is wanted, which no tensor is
            attentions=tuple(eager.weights) if wants_weights and eager is not None else None,  # type: ignore[arg-type]
        )
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()


class StepsTransformerForCausalLM(StepsTransformerPreTrainedModel, GenerationMixin):
    """Token ids to logits of the next ones; the head is the embedding, saved once."""

    _tied_weights_keys = {"lm_head.weight": "model.network.embed.weight"}  # noqa: RUF012

    def __init__(self, config: StepsTransformerConfig) -> None:
        super().__init__(config)
        self.model = StepsTransformerModel(config)
        self.lm_head = linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **others: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        outputs = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=past_key_values,
            inputs_embeds=inputs_embeds, use_cache=use_cache, output_attentions=output_attentions,
            output_hidden_states=output_hidden_states, return_dict=True,
        )  # fmt: skip
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep  # 0 keeps all
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **others)
        output = CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states, attentions=outputs.attentions,
        )  # fmt: skip
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()
