"""What a language model is made from, in the form that the transformers library writes to config.json."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import PreTrainedConfig

from stepsnet.errors import UsageError
from stepsnet.macro import StepPlan
from stepsnet.models import create_model
from stepsnet.models.language import Transformer


class StepsTransformerConfig(PreTrainedConfig):
    """A plan and the choices around it. `architecture` is the registered name it came from, which `stepsnet` files carry."""

    model_type: ClassVar[str] = "steps_transformer"
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
    drop_path_rate: float = 0.0
    max_position_embeddings: int = 128
    """The length it was, or is to be, trained at. Longer texts run too."""
    num_hidden_layers: int | None = None
    """Follows from the plan: one layer of the cache a block."""
    num_attention_heads: int | None = None
    """Follows from the plan: those of the last step."""
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
        self.num_attention_heads = _last_heads(self.options())
        super().__post_init__(**others)  # type: ignore[no-untyped-call]

    @classmethod
    def from_name(cls, name: str, **options: Any) -> StepsTransformerConfig:
        """The configuration of a registered model; `options` are those of `create_model`, such as plan=5 or vocab_size=256."""
        return cls.from_model(_language_model(name, **options))

    @classmethod
    def from_model(cls, model: Transformer, **others: Any) -> StepsTransformerConfig:
        """The configuration of a model that `create_model` made."""
        made = model.default_cfg
        if not made:
            raise UsageError("only a model that create_model made can be described; this one was built by hand.")
        chosen = made["options"]
        parts = {key: chosen[key] for key in ("join", "macro", "residual", "head_dim", "drop_path_rate") if key in chosen}
        for key in ("join", "residual"):
            if not isinstance(parts.get(key, ""), str):
                raise UsageError(f"a model with a {key} of its own cannot be written to a configuration, which holds names only.")
        (length,) = model.input_size
        return cls(
            architecture=made["architecture"], vocab_size=model.vocab_size, hidden_size=model.num_features, plan=model.plan,
            max_position_embeddings=length, **parts, **others,
        )  # fmt: skip

    def options(self) -> dict[str, Any]:
        """What `create_model` takes besides the name."""
        own = {key: getattr(self, key) for key in ("vocab_size", "plan", "join", "macro", "residual", "head_dim", "drop_path_rate")}
        return {**own, "embed_dim": self.hidden_size, "seq_len": self.max_position_embeddings}

    def build(self, device: str | None = None) -> Transformer:
        """The network, new."""
        return _language_model(self.architecture, device=device, **self.options())


def _language_model(name: str, device: str | None = "meta", **options: Any) -> Transformer:
    model = create_model(name, device=device, **options)
    if not isinstance(model, Transformer):
        raise UsageError(f"{name} is not a language model, and transformers' causal language models are.")
    return model


def _last_heads(options: dict[str, Any]) -> int:
    from stepsnet.models.design import head_rule
    from stepsnet.models.language import heads_of

    return head_rule(heads_of, options["head_dim"])(options["embed_dim"])
