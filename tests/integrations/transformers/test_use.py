"""Typical uses: Trainer, pipeline, and conversion from and to run folders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from stepsnet.data.text.prepare import train_bpe
from stepsnet.data.text.vocabulary import BpeVocabulary, ByteVocabulary
from stepsnet.errors import UsageError
from stepsnet.integrations.transformers import (
    StepsTransformerForCausalLM,
    from_run,
    from_stepsnet,
    make_tokenizer,
    to_stepsnet,
)
from stepsnet.models import create_model, load_model, save_model
from stepsnet.models.language import Transformer
from stepsnet.train.config import customise
from stepsnet.train.recipes import get_recipe
from stepsnet.train.trainer import train
from tests.integrations.transformers.common import make_config, make_ids, make_model
from tests.models.tiny import check_same

TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 40
BPE = BpeVocabulary(train_bpe([TEXT], 280), "test")


def core(**options: Any) -> Transformer:
    model = create_model("test_steps_transformer", **options).eval()
    assert isinstance(model, Transformer)
    return model


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps on bytes."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "book.txt").write_text(TEXT)
    words = ["model=test_steps_transformer", "join=matched_grad", "iters=2", "batch_size=4", "data.seq_len=24"]
    train(customise(get_recipe("language"), [*words, f"data.root={folder / 'book.txt'}", f"out={folder / 'run'}"]))
    return folder / "run"


@pytest.mark.parametrize(
    "options",
    [
        {}, {"join": "matched_grad"}, {"macro": "reverse"}, {"plan": "8x1, 32x3"}, {"residual": "rezero"},
        {"embed_scale": 9},
    ],
    ids=str,
)
def test_conversion_keeps_every_tensor_and_option(tmp_path: Path, options: dict[str, Any]) -> None:
    model, ids = core(**options), make_ids()
    converted = from_stepsnet(model)
    assert torch.equal(converted(ids).logits, model(ids))
    back = to_stepsnet(converted)
    assert {key: tensor.tolist() for key, tensor in back.state_dict().items()} == {
        key: t.tolist() for key, t in model.state_dict().items()
    }
    assert (back.plan, back.default_cfg["architecture"]) == (model.plan, model.default_cfg["architecture"])
    save_model(back, tmp_path / "weights.safetensors")
    check_same(load_model(tmp_path / "weights.safetensors").eval(), model, ids)


def test_converting_a_run_folder_there_and_back_is_lossless(tmp_path: Path, run: Path) -> None:
    model, tokenizer = from_run(run)
    model.save_pretrained(tmp_path / "hub")
    tokenizer.save_pretrained(tmp_path / "hub")
    loaded = cast(StepsTransformerForCausalLM, AutoModelForCausalLM.from_pretrained(tmp_path / "hub"))
    save_model(to_stepsnet(loaded), tmp_path / "weights.safetensors")
    original, again = load_model(run / "weights.safetensors"), load_model(tmp_path / "weights.safetensors")
    assert original.plan == again.plan
    assert original.input_size == again.input_size == (24,)
    assert all(torch.equal(tensor, again.state_dict()[key]) for key, tensor in original.state_dict().items())


@pytest.mark.parametrize("vocabulary", [ByteVocabulary(), BPE], ids=["bytes", "bpe"])
def test_tokenizers_agree(tmp_path: Path, vocabulary: ByteVocabulary | BpeVocabulary) -> None:
    make_tokenizer(vocabulary).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for text in (TEXT[:70], "naïve €5 😀\n\n\ttabs", " ", "x"):
        assert tokenizer(text)["input_ids"] == vocabulary.encode(text)
        assert tokenizer.decode(vocabulary.encode(text)) == text
    assert len(tokenizer) == len(vocabulary.pieces)


def test_byte_models_have_special_tokens_that_no_text_contains(run: Path) -> None:
    """Only padding is masked in labels, not newlines, and special strings in a text are encoded as their characters."""
    model, tokenizer = from_run(run)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (0xFE, 0xFE, 0xFF)
    assert (model.config.eos_token_id, model.config.pad_token_id, model.config.vocab_size) == (0xFE, 0xFF, 256)
    batch = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)([tokenizer("a\nb"), tokenizer("\n")])
    assert batch["labels"].tolist() == [[97, 10, 98], [-100, -100, 10]]
    text = "<|endoftext|><|pad|>þÿ"
    assert tokenizer(text)["input_ids"] == list(text.encode())


def test_a_run_on_prepared_text_has_its_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(BPE.content)
    model = core(vocab_size=len(BPE.pieces))
    save_model(model, tmp_path / "weights.safetensors")
    converted, tokenizer = from_run(tmp_path / "weights.safetensors")
    assert tokenizer("The quick")["input_ids"] == BPE.encode("The quick")
    assert converted.config.eos_token_id == tokenizer.eos_token_id == BPE.separator
    written = cast(Any, converted).generate(
        **tokenizer(["The quick", "A"], padding=True, return_tensors="pt"), max_new_tokens=3
    )
    assert written.shape[0] == 2


def test_a_pipeline_generates_text_for_one_prompt_and_for_unequal_ones(run: Path) -> None:
    model, tokenizer = from_run(run)
    writer = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)
    settings = {"max_new_tokens": 5, "do_sample": False}
    one = writer("The quick", **settings)
    assert one[0]["generated_text"].startswith("The quick")
    several = writer(["The quick", "A"], batch_size=2, **settings)
    assert several[0][0]["generated_text"] == one[0]["generated_text"]
    assert several[1][0]["generated_text"] == writer("A", **settings)[0]["generated_text"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_trainer_trains(tmp_path: Path, checkpointing: bool) -> None:
    model = make_model().train()
    rows = [{"input_ids": list(row), "labels": list(row)} for row in zip(*[iter(TEXT.encode())] * 24, strict=False)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=12, per_device_train_batch_size=8, learning_rate=3e-3, logging_steps=1,
        save_steps=12, report_to=[], use_cpu=True, gradient_checkpointing=checkpointing, disable_tqdm=True,
        dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=cast(Any, rows))
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-12")
    assert all(torch.equal(tensor, loaded.state_dict()[key]) for key, tensor in model.state_dict().items())


def test_an_untied_head_is_refused() -> None:
    config = make_config()
    config.tie_word_embeddings = False
    with pytest.raises(UsageError, match="share one embedding"):
        to_stepsnet(StepsTransformerForCausalLM(config))


def test_a_custom_join_is_refused() -> None:
    from stepsnet.macro.joins import PlainJoin

    with pytest.raises(UsageError, match="a custom join"):
        from_stepsnet(core(join=PlainJoin()))


def test_the_error_for_missing_transformers_names_the_extra() -> None:
    program = "import sys; sys.modules['transformers'] = None; import stepsnet.integrations.transformers"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install '.[transformers]'" in done.stderr


def test_stepsnet_does_not_import_transformers() -> None:
    program = (
        "import sys, stepsnet; stepsnet.create_model('test_steps_transformer'); sys.exit('transformers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
