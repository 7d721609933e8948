"""Language models: configuration and classes, with the network of stepsnet behind the library's interface.

Legend: B batch, T new tokens, S all tokens with keys, C channels, H heads, V tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import (
    GenericForSequenceClassification,
    GenericForTokenClassification,
    GradientCheckpointingLayer,
)
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from stepsnet.blocks.attention import CausalAttention, TextContext
from stepsnet.blocks.layers import linear, start_linear
from stepsnet.errors import UsageError
from stepsnet.integrations.transformers.native import NativeConfig, PortableModel
from stepsnet.macro import StepPlan
from stepsnet.models.design import Design
from stepsnet.models.language import Block, Transformer, head_shapes


class StepsTransformerLayer(GradientCheckpointingLayer, Block):
    """A block that the library can checkpoint."""


class StepsTransformerNetwork(Transformer):
    block = StepsTransformerLayer


class StepsTransformerConfig(NativeConfig, PreTrainedConfig):
    """A plan and its options. `architecture` is the registered name, which files of stepsnet contain."""

    model_type: ClassVar[str] = "steps_transformer"
    network_class = StepsTransformerNetwork
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    attribute_map: ClassVar[dict[str, str]] = {"embed_dim": "hidden_size", "seq_len": "max_position_embeddings"}

    architecture: str = "steps_transformer_30m"
    vocab_size: int = 50000
    hidden_size: int = 384
    plan: str = "192x6, 272x3, 384x3"
    join: str = "plain"
    macro: str = "steps"
    residual: str = "plain"
    head_dim: int | None = None
    heads: str = "own"
    embed_scale: float = 1.0
    drop_path_rate: float = 0.0
    max_position_embeddings: int = 128
    """The training length. Longer texts also run."""
    num_hidden_layers: int | None = None
    """From the plan: one cache layer per block."""
    num_attention_heads: int | None = None
    """From the plan: the heads of the last step. `per_layer_config` has those of each block."""
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    tie_word_embeddings: bool = True

    def __post_init__(self, **others: Any) -> None:
        plan = StepPlan.parse(self.plan)
        if plan.width != self.hidden_size:
            raise UsageError(f"the plan '{plan}' ends at width {plan.width}, but hidden_size is {self.hidden_size}.")
        self.num_hidden_layers = plan.blocks
        shapes = head_shapes(plan, self.head_dim, self.heads)
        self.num_attention_heads, size = shapes[max(shapes)]
        if len(set(shapes.values())) == 1:
            self.head_dim = size  # tools of the library do not read the heads of one-step models from elsewhere
        others["per_layer_config"] = self._heads_of_blocks(plan, shapes)
        super().__post_init__(**others)  # type: ignore[no-untyped-call]
        # Tools may read the last step's heads as the model's.
        self.allow_global_per_layer_attribute_access = True

    def _heads_of_blocks(
        self, plan: StepPlan, shapes: dict[int, tuple[int, int]]
    ) -> dict[int, dict[str, int]] | None:
        """Heads of each block, from which the library makes caches; None if all blocks have the same."""
        if len(set(shapes.values())) == 1 or self.macro == "waist":
            return None
        widths = [width for width, depth in zip(plan.widths, plan.depths, strict=True) for _ in range(depth)]
        keys = ("num_attention_heads", "head_dim")
        ordered = widths[::-1] if self.macro == "reverse" else widths
        return {index: dict(zip(keys, shapes[width], strict=True)) for index, width in enumerate(ordered)}

    def options(self) -> dict[str, Any]:
        """Arguments of `create_model` besides the name."""
        keys = ("vocab_size", "plan", "join", "macro", "residual", "head_dim", "heads", "embed_scale", "drop_path_rate")
        own = {key: vars(self)[key] for key in keys}  # vars: `head_dim` here is the option, not that of a block
        return {**own, "embed_dim": self.hidden_size, "seq_len": self.max_position_embeddings}

    def build(self) -> StepsTransformerNetwork:
        """A new network."""
        options = self.options()
        parts = {key: options.pop(key) for key in ("plan", "join", "macro", "residual")}
        design = Design(**parts, drop_path=options.pop("drop_path_rate"))
        return StepsTransformerNetwork(**options, depth=StepPlan.parse(self.plan).blocks, design=design)


@dataclass
class LibraryCache:
    """Adapter from the library's cache to the interface of our blocks: one layer per block."""

    cache: Cache

    @property
    def length(self) -> int:
        return self.cache.get_seq_length()

    def extend(self, block: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.cache.update(k, v, block)


def eager_attention(
    _layer: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float, **_others: Any
) -> tuple[Tensor, Tensor]:
    """Attention in plain operations: its result (B, T, H, D) and its weights. The mask is added to the scores."""
    scores = q @ k.transpose(-1, -2) * scaling
    if mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
    return (weights @ v).transpose(1, 2), weights


@dataclass
class LibraryAttention:
    """Adapter from the library's attention functions to our blocks; it keeps weights, which only eager ones return."""

    implementation: str
    options: dict[str, Any]
    weights: list[Tensor] = field(default_factory=list)

    def __call__(self, layer: CausalAttention, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        function = ALL_ATTENTION_FUNCTIONS.get_interface(self.implementation, eager_attention)
        result, weights = function(layer, q, k, v, mask, scaling=layer.head_dim**-0.5, **self.options)
        if weights is not None:
            self.weights.append(weights)
        return result.transpose(1, 2)


class StepsTransformerPreTrainedModel(PortableModel, PreTrainedModel):
    """Common base of the models below."""

    config_class = StepsTransformerConfig
    config: StepsTransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _no_split_modules = ["StepsTransformerLayer"]  # noqa: RUF012  # as in the library
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Our modules initialise themselves; the library skips loaded weights."""
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
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, position_ids: Tensor | None = None,
        past_key_values: Cache | None = None, inputs_embeds: Tensor | None = None, use_cache: bool | None = None,
        output_attentions: bool | None = None, output_hidden_states: bool | None = None,
        return_dict: bool | None = None, **others: Any,
    ) -> BaseModelOutputWithPast | tuple[Any, ...]:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
        embedded: Tensor = self.network.embed(input_ids) if inputs_embeds is None else inputs_embeds
        checkpointing = self.gradient_checkpointing and self.training
        # Checkpointed blocks run twice and would cache their keys twice.
        use_cache = (self.config.use_cache if use_cache is None else use_cache) and not checkpointing
        cache = DynamicCache(config=self.config) if use_cache and past_key_values is None else past_key_values
        past = cache.get_seq_length() if cache is not None else 0
        if position_ids is None:
            position_ids = torch.arange(past, past + embedded.shape[1], device=embedded.device)[None]
        mask: Any = create_causal_mask(
            config=self.config, inputs_embeds=embedded, attention_mask=attention_mask, past_key_values=cache,
            position_ids=position_ids,
        )
        attention = LibraryAttention(self.config._attn_implementation, others)
        context = TextContext(
            self.network.rotary_tables(position_ids), mask, LibraryCache(cache) if cache is not None else None,
            attention,
        )  # fmt: skip
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
            hidden_states=(embedded, *states[:-1], hidden) if wants_states else None,  # type: ignore[arg-type]  # the library declares FloatTensor
            attentions=tuple(attention.weights) if wants_weights and attention.weights else None,  # type: ignore[arg-type]
        )
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()


class StepsTransformerForCausalLM(StepsTransformerPreTrainedModel, GenerationMixin):
    """Token ids to logits of the next tokens; the head is tied to the embedding and saved once."""

    _tied_weights_keys = {"lm_head.weight": "model.network.embed.weight"}  # noqa: RUF012

    def __init__(self, config: StepsTransformerConfig) -> None:
        super().__init__(config)
        self.model = StepsTransformerModel(config)
        self.lm_head = linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, position_ids: Tensor | None = None,
        past_key_values: Cache | None = None, inputs_embeds: Tensor | None = None, labels: Tensor | None = None,
        use_cache: bool | None = None, output_attentions: bool | None = None, output_hidden_states: bool | None = None,
        return_dict: bool | None = None, logits_to_keep: int | Tensor = 0, **others: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        outputs = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
            past_key_values=past_key_values, inputs_embeds=inputs_embeds, use_cache=use_cache,
            output_attentions=output_attentions, output_hidden_states=output_hidden_states, return_dict=True,
            **others,
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


class StepsTransformerForSequenceClassification(GenericForSequenceClassification, StepsTransformerPreTrainedModel):
    """Token ids to one row of class logits per text, from its last token; see the library's class."""


class StepsTransformerForTokenClassification(GenericForTokenClassification, StepsTransformerPreTrainedModel):
    """Token ids to class logits of each token; see the library's class."""
