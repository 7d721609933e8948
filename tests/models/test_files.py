"""Models in files: saved, loaded, refused; no code in a file is run."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from stepsnet.errors import UsageError
from stepsnet.models import create_model, load_model, save_model
from stepsnet.models.files import read_header
from tests.models.tiny import VARIANTS, check_same, example, shake, variant, vision

every_variant = pytest.mark.parametrize("key", VARIANTS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


@every_variant
def test_logits_survive_saving_and_loading(key: str, path: Path) -> None:
    model = shake(variant(key))
    x = example(model)
    model(x)  # in training, so that running statistics move
    save_model(model, path)
    loaded = load_model(path)
    check_same(loaded.eval(), model.eval(), x)
    assert loaded.plan == model.plan
    assert not any(tensor.is_meta for tensor in loaded.state_dict().values())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (
            "deit_tiny",
            {"plan": "16x1, 24x2", "embed_dim": 24, "img_size": (32, 48), "patch_size": 8, "global_pool": "avg"},
        ),
        ("test_swin", {"plan": [1, 1, 2, "20x2, 40x1"], "window_size": 3, "in_chans": 1}),
        ("test_resnet", {"bottleneck": True, "drop_path_rate": 0.2, "plan": 2, "stem_stride": 1}),
        ("test_transformer", {"vocab_size": 50, "plan": "16x1, 32x0", "join": "matched_grad"}),
        ("test_transformer", {"embed_scale": 8}),
    ],
)
def test_options_survive_saving_and_loading(name: str, options: dict[str, Any], path: Path) -> None:
    model = shake(create_model(name, **options)).eval()
    save_model(model, path)
    loaded = load_model(path).eval()
    x = example(model)
    check_same(loaded, model, x)
    assert (loaded.plan, loaded.input_size) == (model.plan, model.input_size)


def test_a_new_head_survives_saving_and_loading(path: Path) -> None:
    model = vision("test_deit")
    model.reset_classifier(3, "avg")
    save_model(model, path)
    loaded = load_model(path)
    x = example(model)
    check_same(loaded.eval(), model.eval(), x)


def test_the_dtype_survives_saving_and_loading(path: Path) -> None:
    save_model(create_model("test_deit").to(torch.bfloat16), path)
    assert {tensor.dtype for tensor in load_model(path).state_dict().values()} == {torch.bfloat16}


def test_a_model_loaded_without_mmap_does_not_need_its_file(path: Path) -> None:
    model = create_model("test_deit").eval()
    save_model(model, path)
    loaded = load_model(path, mmap=False).eval()
    path.write_bytes(b"\0" * path.stat().st_size)
    x = example(model)
    check_same(loaded, model, x)


def test_weights_stay_in_the_file_until_they_are_used(path: Path) -> None:
    """Overwriting the file in place changes weights that were not read yet, so nothing had been copied."""
    save_model(create_model("test_deit"), path)
    loaded = load_model(path)
    with path.open("r+b") as file:
        file.write(b"\0" * path.stat().st_size)
    assert {float(parameter.detach().abs().max()) for parameter in loaded.parameters()} == {0.0}


def test_loading_draws_no_random_numbers(path: Path) -> None:
    save_model(create_model("test_steps_swin"), path)
    before = torch.get_rng_state()
    load_model(path)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "vanish", [Path.unlink, lambda path: save_model(create_model("test_deit"), path)], ids=["deleted", "replaced"]
)
def test_a_mapped_models_file_may_be_deleted_or_replaced(vanish: Callable[[Path], None], path: Path) -> None:
    model = create_model("test_deit").eval()
    save_model(model, path)
    loaded = load_model(path).eval()
    vanish(path)
    x = example(model)
    check_same(loaded, model, x)


def test_training_a_mapped_model_does_not_change_its_file(path: Path) -> None:
    save_model(create_model("test_deit"), path)
    before = path.read_bytes()
    loaded = load_model(path)
    loaded(example(loaded)).square().mean().backward()
    torch.optim.SGD(loaded.parameters(), lr=0.1).step()
    assert path.read_bytes() == before


def test_other_options_override_those_in_the_file(path: Path) -> None:
    save_model(create_model("test_deit"), path)
    assert load_model(path, join="matched_grad").default_cfg["options"]["join"] == "matched_grad"


def test_other_weights_can_be_saved(path: Path) -> None:
    model = create_model("test_deit")
    save_model(model, path, {key: tensor + 1 for key, tensor in model.state_dict().items()})
    torch.testing.assert_close(load_model(path).get_parameter("norm.weight"), model.get_parameter("norm.weight") + 1)


def test_weights_load_into_a_model_made_by_name(path: Path) -> None:
    model = create_model("test_deit").eval()
    save_model(model, path)
    x = example(model)
    assert torch.equal(create_model("test_deit", checkpoint_path=path).eval()(x), model(x))


def test_a_backbone_takes_a_classifiers_weights(path: Path) -> None:
    model = vision("test_swin").eval()
    save_model(model, path)
    backbone = create_model("test_swin", features_only=True, out_indices=[1], checkpoint_path=path).eval()
    x = example(model)
    assert torch.equal(backbone(x)[0], model.forward_intermediates(x, [1], intermediates_only=True)[0])


def test_the_header_has_name_plan_and_format(path: Path) -> None:
    save_model(create_model("test_steps_deit"), path)
    header = read_header(path)
    assert (header["name"], header["plan"], header["stepsnet_format"]) == ("test_steps_deit", "16x4, 22x2, 32x2", "1")
    assert json.loads(header["options"])["embed_dim"] == 32


def test_a_save_that_fails_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(create_model("test_deit"), path)
    before = path.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        save_model(create_model("test_deit"), path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


class Payload:
    """Unpickling it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("write", [pickle.dump, torch.save], ids=["pickle", "torch.save"])
def test_a_pickle_is_refused_and_does_not_run(write: Any, path: Path, tmp_path: Path) -> None:
    proof = tmp_path / "it-ran"
    with path.open("wb") as file:
        write({"weight": Payload(proof)}, file)
    with pytest.raises(UsageError, match=r"model\.safetensors is not a safetensors file .* can run code"):
        load_model(path)
    with pytest.raises(UsageError, match="can run code"):
        create_model("test_deit", checkpoint_path=path)
    assert not proof.exists()
    with path.open("rb") as file:
        torch.load(file, weights_only=False) if write is torch.save else pickle.load(file)
    assert proof.exists()  # the payload was a real one


def rewrite(path: Path, weights: dict[str, Tensor] | None = None, **header: str) -> None:
    old_header, old_weights = read_header(path), safetensors.torch.load_file(path)
    safetensors.torch.save_file(
        weights or {key: tensor.clone() for key, tensor in old_weights.items()}, path, old_header | header
    )


def test_a_newer_format_is_refused(path: Path) -> None:
    save_model(create_model("test_deit"), path)
    rewrite(path, stepsnet_format="2")
    with pytest.raises(UsageError, match=r"written by a newer stepsnet \(format 2, this one reads up to 1\); upgrade"):
        load_model(path)


def test_a_file_for_another_plan_is_refused(path: Path) -> None:
    save_model(create_model("test_steps_deit"), path)
    with pytest.raises(
        UsageError, match=r"model\.safetensors does not fit test_deit with plan '32x4': it has net\.steps\.1\.\S+ \(\d+"
    ):
        create_model("test_deit", checkpoint_path=path)
    with pytest.raises(
        UsageError, match=r"does not fit test_steps_deit with plan '16x4, 24x2, 32x2': its net\.steps\.1\.\S+ is"
    ):
        load_model(path, plan="16x4, 24x2, 32x2")


def test_a_file_without_one_of_the_weights_is_refused(path: Path) -> None:
    model = create_model("test_deit")
    save_model(model, path)
    weights = {key: tensor.clone() for key, tensor in model.state_dict().items() if key != "norm.bias"}
    rewrite(path, weights)
    with pytest.raises(UsageError, match=r"does not fit test_deit with plan '32x4': it lacks norm\.bias \(1 in all\)"):
        load_model(path)


def test_a_missing_file_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no file .*model\.safetensors"):
        load_model(path)


def test_the_folder_of_a_run_means_its_final_weights(tmp_path: Path) -> None:
    model = create_model("test_deit").eval()
    save_model(model, tmp_path / "weights.safetensors")
    x = example(model)
    check_same(load_model(tmp_path).eval(), model, x)
    check_same(create_model("test_deit", checkpoint_path=tmp_path).eval(), model, x)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"is a folder without weights\.safetensors; give a file, or the folder of a finished run"
    ):
        load_model(tmp_path)


def test_a_pickled_checkpoint_is_refused_with_the_code_that_converts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = create_model("test_deit").eval()
    torch.save(model.state_dict(), "w.pth")
    with pytest.raises(UsageError, match=r"w\.pth is not a safetensors file .* convert a state dict with ") as caught:
        create_model("test_deit", checkpoint_path="w.pth")
    exec(str(caught.value).partition("convert a state dict with ")[2])  # the code in the message works
    x = example(model)
    assert torch.equal(create_model("test_deit", checkpoint_path="w.safetensors").eval()(x), model(x))


def test_load_model_refuses_a_file_without_model_name(path: Path) -> None:
    safetensors.torch.save_file(create_model("test_deit").state_dict(), path)
    with pytest.raises(UsageError, match="does not say which model it is for"):
        load_model(path)
    create_model("test_deit", checkpoint_path=path)


def test_a_model_with_a_custom_part_cannot_be_saved(path: Path) -> None:
    with pytest.raises(UsageError, match=r"a part of your own \(.*Identity.*\) cannot be rebuilt from a file"):
        save_model(create_model("test_steps_deit", join=nn.Identity()), path)
    assert not path.exists()


def test_a_model_made_without_a_name_cannot_be_saved(path: Path) -> None:
    from stepsnet.models.deit import DeiT

    with pytest.raises(UsageError, match="only models from create_model can be saved"):
        save_model(DeiT(embed_dim=8, depth=1, img_size=16), path)
