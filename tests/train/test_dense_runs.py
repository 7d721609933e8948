"""Detection and segmentation in the trainer: exact resume, accumulation, EMA, processes, weights, evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from stepsnet.errors import UsageError
from stepsnet.models import VisionModel, create_model, save_model
from stepsnet.runs.folder import METRICS, read_lines
from stepsnet.train.build import DenseModel, model_of, preview, task_of
from stepsnet.train.config import TrainConfig, customise
from stepsnet.train.evaluate import evaluate_run
from stepsnet.train.recipes import get_recipe
from stepsnet.train.trainer import resume, train
from tests.dense_models import MASK_WORDS, NARROW, SIDE, coco_folder, document, mask_folder
from tests.train.synthetic import At, fingerprint, in_processes, terminate

COMMON = [
    "workers=0",
    "batch_size=2",
    "accumulate=2",
    "iters=4",
    "eval.every=0",
    "checkpoint.every=2",
    "optim.ema=0.9",
    "drop_path=0.2",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    coco_folder(root / "coco")
    mask_folder(root / "masks")
    return root


def config_of(kind: str, data: Path, out: Path, *words: str) -> TrainConfig:
    sizes = [f"data.img_size={SIDE}", "data.max_size=96"]
    if kind == "segmentation":
        recipe, own = get_recipe("mask_folder"), [f"data.root={data / 'masks'}", *MASK_WORDS]
    else:
        recipe, own = (
            get_recipe("object_folder"),
            [f"data.root={data / 'coco'}", *NARROW, *sizes, f"detect.heads={kind}", "augment.scale=0.5,1.5"],
        )
    return customise(recipe, [*COMMON, *own, "model=test_steps_swin", f"out={out}", *words])


KINDS = ("mask_rcnn", "cascade", "segmentation")


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_equals_an_uninterrupted_one(kind: str, data: Path, tmp_path: Path) -> None:
    train(config_of(kind, data, tmp_path / "whole"))
    stopped = train(config_of(kind, data, tmp_path / "run"), [At(1, terminate)])
    assert not stopped.finished
    assert resume(tmp_path / "run").finished
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["mask_rcnn", "segmentation"])
def test_two_processes_train_one_model_and_evaluate_every_image_once(kind: str, data: Path, tmp_path: Path) -> None:
    words = ["parallel=ddp", "accumulate=1", "batch_size=4"]
    first, second = in_processes(2, lambda: train(config_of(kind, data, tmp_path / "run", *words)).metrics)
    assert first == second
    alone = evaluate_run(tmp_path / "run")
    assert alone == pytest.approx({name: first[name] for name in alone}, abs=1e-6)


def test_segmentation_on_two_processes_equals_one(data: Path, tmp_path: Path) -> None:
    """Without batch norm and stochastic depth, the losses do not depend on how the batch is split."""
    words = ["segment.norm=group", "drop_path=0", "batch_size=4", "optim.ema=0", "iters=3", "checkpoint.every=0"]
    train(config_of("segmentation", data, tmp_path / "one", *words, "accumulate=1"))
    train(config_of("segmentation", data, tmp_path / "parts", *words, "accumulate=2"))
    in_processes(
        2,
        lambda: bool(train(config_of("segmentation", data, tmp_path / "two", *words, "accumulate=1", "parallel=ddp"))),
    )
    losses = [[line["loss"] for line in read_lines(tmp_path / run / METRICS)] for run in ("one", "parts", "two")]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    assert losses[2] == pytest.approx(losses[0], abs=1e-5)


@pytest.mark.parametrize("kind", ["cascade", "segmentation"])
def test_a_run_is_evaluated_from_its_weights_with_and_without_average(kind: str, data: Path, tmp_path: Path) -> None:
    result = train(config_of(kind, data, tmp_path / "run"))
    kept: list[object] = []
    found = evaluate_run(tmp_path / "run", keep=kept.extend)
    assert found == pytest.approx({name: result.metrics[name] for name in found}, abs=1e-6)
    averaged = evaluate_run(tmp_path / "run", ema=True)
    assert averaged == pytest.approx({name: result.metrics[f"ema_{name}"] for name in averaged}, abs=1e-6)
    if kind == "cascade":
        entries = [entry for entry in kept if isinstance(entry, dict)]
        assert all(entry.keys() == {"image_id", "category_id", "bbox", "score", "segmentation"} for entry in entries)
        json.dumps(entries)


def test_bf16_and_gradient_checkpointing_train(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepsnet.train.distributed.has_bf16", lambda: True)
    result = train(
        config_of("mask_rcnn", data, tmp_path / "run", "precision=bf16", "grad_checkpointing=true", "iters=1")
    )
    assert result.finished


def model(kind: str, data: Path, *words: str) -> DenseModel:
    config = config_of(kind, data, Path("unused"), *words)
    made = model_of(config, task_of(config))
    assert isinstance(made, DenseModel)
    return made


def classifier(path: Path, name: str = "test_steps_swin", **options: object) -> VisionModel:
    torch.manual_seed(5)
    made = create_model(name, num_classes=4, **options)  # type: ignore[call-overload]
    assert isinstance(made, VisionModel)
    save_model(made, path)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_backbone_starts_from_classification_weights(kind: str, data: Path, tmp_path: Path) -> None:
    trained = classifier(tmp_path / "weights.safetensors").state_dict()
    for given in (tmp_path, tmp_path / "weights.safetensors"):  # a run's folder, or the file
        weights = model(kind, data, f"backbone.weights={given}").state_dict()
        prefix = next(name for name in weights if name.endswith("patch_embed.proj.weight")).removesuffix(
            "patch_embed.proj.weight"
        )
        shared = {name: tensor for name, tensor in trained.items() if not name.startswith(("head.", "norm."))}
        assert all(torch.equal(weights[prefix + name], tensor) for name, tensor in shared.items())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["model=test_swin"], "is a test_steps_swin, not a test_swin"),
        (["plan=6x1; 12x1; 24x2; 48x1"], "has the plan"),
    ],
)
def test_weights_of_another_backbone_are_refused(data: Path, tmp_path: Path, words: list[str], sentence: str) -> None:
    classifier(tmp_path / "weights.safetensors")
    with pytest.raises(UsageError, match=sentence):
        model("mask_rcnn", data, f"backbone.weights={tmp_path}", *words)


def test_a_folder_without_weights_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give a file, or the folder of a finished run"):
        model("mask_rcnn", data, f"backbone.weights={tmp_path}")


def test_norms_are_frozen_only_with_pretrained_weights(data: Path, tmp_path: Path) -> None:
    classifier(tmp_path / "weights.safetensors", "test_resnet")
    fresh = model("mask_rcnn", data, "model=test_resnet")
    started = model("mask_rcnn", data, "model=test_resnet", f"backbone.weights={tmp_path}")
    learning = [
        {
            module.training
            for module in made.train().blocks_in_order()[0].modules()
            if isinstance(module, torch.nn.BatchNorm2d)
        }
        for made in (fresh, started)
    ]
    assert learning == [{True}, {False}]


def test_a_language_model_is_refused_as_backbone(data: Path) -> None:
    with pytest.raises(UsageError, match="takes text"):
        model("mask_rcnn", data, "model=test_transformer", "drop_path=0")


@pytest.mark.parametrize("kind", KINDS)
def test_layer_decay_applies_and_positions_have_no_weight_decay(kind: str, data: Path) -> None:
    from stepsnet.models import layer_ids

    made = model(kind, data)
    layers = layer_ids(made)
    stem = [layers[name] for name in layers if ".patch_embed." in name]
    heads = [layers[name] for name in layers if "roi_heads" in name or "decode_head" in name]
    assert set(stem) == {0}
    assert set(heads) == {len(made.blocks_in_order()) + 1}
    assert made.no_weight_decay() <= {name for name, _ in made.named_parameters()}
    assert any(name.endswith("bias_table") for name in made.no_weight_decay())


@pytest.mark.parametrize("kind", KINDS)
def test_a_preview_counts_the_whole_network(kind: str, data: Path) -> None:
    found = preview(config_of(kind, data, Path("unused")))
    assert found["model"]["params"] == sum(parameter.numel() for parameter in model(kind, data).parameters())
    assert found["model"]["macs"] > 1e6
    assert found["model"]["blocks"] == len(model(kind, data).blocks_in_order())


def test_data_with_an_unknown_class_are_refused(data: Path, tmp_path: Path) -> None:
    train(config_of("mask_rcnn", data, tmp_path / "run", "iters=1"))
    documents = document(5), document(3, first=6)
    for each in documents:
        each["categories"].append({"id": 9, "name": "new"})
    other = coco_folder(tmp_path / "other", *documents)
    with pytest.raises(
        UsageError,
        match=r"weights.safetensors was trained on the classes \['tall', 'wide'\], but the data have \['new'\]",
    ):
        evaluate_run(tmp_path / "run", [f"data.root={other}"])
