"""Base classes that link the library's classes to the rest of stepsnet. Code that `remote.py` writes does without them.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Self

from transformers import PreTrainedModel

from stepsnet.errors import UsageError
from stepsnet.models import Model, VisionModel, create_model
from stepsnet.models.resnet import ResNet


class NativeConfig:
    """Configurations from models of `create_model`, and the way back."""

    network_class: ClassVar[Any]
    attribute_map: ClassVar[dict[str, str]]
    architecture: str
    model_type: ClassVar[str]

    @classmethod
    def from_name(cls, name: str, **options: Any) -> Self:
        """The configuration of a registered model; `options` are those of `create_model`, such as plan=5."""
        return cls.from_model(create_model(name, device="meta", **options))

    @classmethod
    def from_model(cls, model: Model, **others: Any) -> Self:
        """The configuration of a model that `create_model` made."""
        made = model.default_cfg
        if not made:
            raise UsageError("only a model made by create_model has a configuration; this one was built directly.")
        if model.family != cls.network_class.family:
            name = made["architecture"]
            wanted = f"{cls.__name__} is for {cls.network_class.family}"
            raise UsageError(f"{name} is of the family {model.family}; {wanted}.")
        known = {field.name for field in fields(cls)}  # type: ignore[arg-type]  # the library makes it a dataclass
        chosen = {cls.attribute_map.get(key, key): value for key, value in made["options"].items()}
        parts = {key: value for key, value in chosen.items() if key in known} | model.changed_options()
        for key in ("join", "residual"):
            if not isinstance(parts.get(key, ""), str):
                raise UsageError(f"a model with a custom {key} has no configuration, because that contains names only.")
        if isinstance(model, VisionModel):
            parts["num_labels"] = parts.pop("num_classes")
        return cls(**(parts | {"architecture": made["architecture"], "plan": model.plan} | others))

    def options(self) -> dict[str, Any]:
        """Arguments of `create_model` besides the name."""
        raise NotImplementedError

    def create(self) -> Model:
        """A new native model, which `save_model` can write."""
        return create_model(self.architecture, **self.options())

    def to_dict(self) -> dict[str, Any]:
        """The library's own. PEFT calls it before it looks up the default layers of the model type, so it adds ours."""
        peft = sys.modules.get("peft.utils.constants")
        if peft is not None and not issubclass(self.network_class, ResNet):  # no attention
            peft.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.setdefault(self.model_type, ["qkv"])
        found: dict[str, Any] = super().to_dict()  # type: ignore[misc]  # of the library's configuration class
        return found


class PortableModel(PreTrainedModel):
    """`save_pretrained` also writes the code of the model, so that the folder loads where stepsnet is not installed."""

    def save_pretrained(  # type: ignore[override]  # all further arguments are the library's
        self, save_directory: str | Path, *, push_to_hub: bool = False, **options: Any
    ) -> None:
        from stepsnet.integrations.transformers.remote import write_code

        super().save_pretrained(save_directory, **options)
        if options.get("is_main_process", True):
            write_code(type(self), Path(save_directory))
        if push_to_hub:  # after the code was written
            self.push_to_hub(options.get("repo_id", Path(save_directory).name))
