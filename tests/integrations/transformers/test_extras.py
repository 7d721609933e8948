"""PEFT, lm-evaluation-harness and counters of MACs on our models. They are no extras of ours: pip install them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from stepsnet.data.text.vocabulary import ByteVocabulary
from stepsnet.models import cost_of, create_model
from stepsnet.transformers import from_stepsnet, make_tokenizer
from tests.integrations.transformers.common import make_ids, make_model


@pytest.mark.filterwarnings("ignore")
def test_peft_trains_saves_and_merges_lora(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="pip install peft==0.21.2")
    ids, base = make_ids(), make_model()
    before = cast(Any, base)(ids).logits
    settings = peft.LoraConfig(target_modules=["qkv", "proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    model = peft.get_peft_model(base, settings)
    model(input_ids=ids, labels=ids).loss.backward()
    assert all(("lora" in key) == (parameter.grad is not None) for key, parameter in model.named_parameters())
    model.save_pretrained(tmp_path)
    expected = model.eval()(input_ids=ids).logits
    loaded = peft.PeftModel.from_pretrained(make_model(), tmp_path).eval()
    torch.testing.assert_close(loaded(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-4)
    merged = loaded.merge_and_unload()
    torch.testing.assert_close(merged(ids).logits, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(expected, before, atol=1e-3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["test_steps_transformer", "test_steps_swin", "test_steps_deit"])
def test_peft_has_default_layers_for_models_made_before_and_after_its_import(name: str) -> None:
    peft = pytest.importorskip("peft", reason="pip install peft==0.21.2")
    base = make_model() if "transformer" in name else from_stepsnet(create_model(name))
    # As if PEFT had been imported only now.
    peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.pop(base.config.model_type, None)
    model = peft.get_peft_model(base, peft.LoraConfig())
    adapted = {key.split(".lora_")[0].rpartition(".")[2] for key, p in model.named_parameters() if p.requires_grad}
    assert adapted == {"qkv"}


@pytest.mark.parametrize(("name", "layers"), [("test_steps_swin", ["qkv"]), ("test_steps_resnet", None)])
def test_a_configuration_tells_peft_its_layers(
    name: str, layers: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PEFT calls `to_dict` for the model type, then looks it up."""
    config = from_stepsnet(create_model(name)).config
    known: dict[str, list[str]] = {}
    constants = SimpleNamespace(TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING=known)
    monkeypatch.setitem(sys.modules, "peft.utils.constants", constants)
    assert known.get(config.to_dict()["model_type"]) == layers


@pytest.mark.filterwarnings("ignore")
def test_prefix_tuning_needs_uniform_heads() -> None:
    peft = pytest.importorskip("peft", reason="pip install peft==0.21.2")
    settings, ids = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4), make_ids()
    model = peft.get_peft_model(make_model(heads="uniform", head_dim=8), settings)
    model(input_ids=ids, labels=ids).loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    assert model.generate(input_ids=ids, max_new_tokens=3, pad_token_id=0).shape == (2, 15)
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):  # PEFT makes one shape for all layers
        peft.get_peft_model(make_model(plan="16x1, 32x1"), settings)(input_ids=ids)


class AttentionMacs(TorchFunctionMode):
    """Counts fused attention, which the counters of other libraries leave out."""

    macs = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.scaled_dot_product_attention:
            self.macs += 2 * args[0].numel() * args[1].shape[-2]
        return func(*args, **(kwargs or {}))


FAMILIES = ("deit", "swin", "swinpp", "resnet", "transformer")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("counter", ["fvcore", "thop"])
def test_counters_agree_on_layers(counter: str, family: str) -> None:
    """Linear layers and convolutions are equal. Norms, which we leave out, are left out of theirs."""
    library = pytest.importorskip(counter, reason=f"pip install {counter}")
    model = create_model(f"test_steps_{family}").eval()
    text = family == "transformer"
    x = torch.zeros(1, *model.input_size, dtype=torch.long if text else torch.float32)
    with AttentionMacs() as attention, torch.no_grad():
        model(x)
    expected = cost_of(model).macs - attention.macs
    if counter == "fvcore":
        operators = importlib.import_module("fvcore.nn").FlopCountAnalysis(model, (x,)).by_operator()
        found = operators["conv"] + operators["linear"]
    else:
        layers = {type(module) for module in model.modules()} - {nn.Linear, nn.Conv2d, nn.Identity}
        leaves = [kind for kind in layers if kind.__module__.startswith("torch.nn") and kind is not nn.Sequential]
        others = dict.fromkeys(leaves, lambda *_: None)
        found, _ = library.profile(model, (x,), custom_ops=others, verbose=False)
        if text:  # it sees modules only, and the head is a function of the shared embedding
            found += x.numel() * cast(Any, model).embed.weight.numel()
    assert found == expected


@pytest.mark.filterwarnings("ignore")
def test_lm_eval_scores_a_byte_model() -> None:
    huggingface = pytest.importorskip("lm_eval.models.huggingface", reason="pip install lm_eval==0.4.13")
    from lm_eval.api.instance import Instance  # type: ignore[import-not-found,unused-ignore]

    model, tokenizer = make_model(), make_tokenizer(ByteVocabulary())
    harness = huggingface.HFLM(pretrained=model, tokenizer=tokenizer, device="cpu", batch_size=1)
    request = Instance(request_type="loglikelihood", doc={}, arguments=("The", " quick"), idx=0)
    ((score, _),) = harness.loglikelihood([request])
    ids = torch.tensor([list(b"The quick")])
    logits = cast(Any, model)(ids).logits.log_softmax(-1)
    assert score == pytest.approx(logits[0, 2:8].gather(1, ids[0, 3:, None]).sum().item(), abs=1e-3)
