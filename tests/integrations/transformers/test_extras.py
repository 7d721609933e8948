"""PEFT and lm-evaluation-harness on our models. They are no extras of ours: pip install them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch

from stepsnet.data.text.vocabulary import ByteVocabulary
from stepsnet.transformers import make_tokenizer
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
def test_lm_eval_scores_a_byte_model() -> None:
    huggingface = pytest.importorskip("lm_eval.models.huggingface", reason="pip install lm_eval==0.4.13")
    from lm_eval.api.instance import Instance  # type: ignore[import-not-found,unused-ignore]

    model, tokenizer = make_model(), make_tokenizer(ByteVocabulary())
    harness = huggingface.HFLM(pretrained=model, tokenizer=tokenizer, device="cpu", batch_size=1)
    request = Instance(request_type="loglikelihood", doc={}, arguments=("The ", "quick"), idx=0)
    ((score, _),) = harness.loglikelihood([request])
    ids = torch.tensor([list(b"The quick")])
    logits = cast(Any, model)(ids).logits.log_softmax(-1)
    assert score == pytest.approx(logits[0, 3:8].gather(1, ids[0, 4:, None]).sum().item(), abs=1e-3)
