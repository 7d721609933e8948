from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stepsnet.data.config import AugmentConfig
from stepsnet.tasks.classification import BatchMixer

SIZE, CLASSES = 16, 6
# Image i has the constant value i and class i, so that pixels tell their image.
IMAGES = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 1, SIZE, SIZE).contiguous()
TARGET = torch.arange(4)
IDS = torch.tensor([40, 41, 42, 43])


def mix_batch(augment: AugmentConfig, step: int = 0, smoothing: float = 0.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    return BatchMixer(augment, CLASSES, smoothing, seed)(IMAGES, TARGET, IDS, step)


def test_mixup_mixes_images_and_targets_in_the_same_proportion() -> None:
    images, target = mix_batch(AugmentConfig(mixup=0.8))
    expected = (target * torch.arange(float(CLASSES))).sum(dim=1)
    assert torch.allclose(images[:, 0, 0, 0], expected, atol=1e-5)
    assert torch.allclose(target.sum(dim=1), torch.ones(4))


@pytest.mark.parametrize("step", range(20))
def test_cutmix_targets_are_the_share_of_pixels_also_for_a_clipped_box(step: int) -> None:
    images, target = mix_batch(AugmentConfig(cutmix=1.0), step)
    for image, soft in zip(images, target, strict=True):
        share = torch.bincount(image.flatten().long(), minlength=CLASSES) / SIZE**2
        assert torch.allclose(share, soft, atol=1e-6)


def test_cutmix_alone_gives_soft_targets() -> None:
    assert mix_batch(AugmentConfig(cutmix=1.0))[1].shape == (4, CLASSES)


def test_smoothing_is_spread_over_all_classes() -> None:
    plain, smooth = (mix_batch(AugmentConfig(mixup=0.8), smoothing=smoothing)[1] for smoothing in (0.0, 0.12))
    assert torch.allclose(smooth, plain * 0.88 + 0.02)


def test_mixing_depends_only_on_seed_step_and_first_id() -> None:
    both = AugmentConfig(mixup=0.8, cutmix=1.0)
    first = mix_batch(both, step=3)
    torch.rand(5)
    assert torch.equal(mix_batch(both, step=3)[0], first[0])
    assert not torch.equal(mix_batch(both, step=4)[1], first[1])
    assert not torch.equal(mix_batch(both, step=3, seed=1)[1], first[1])
    assert not torch.equal(BatchMixer(both, CLASSES, 0.0, 0)(IMAGES, TARGET, IDS + 1, 3)[1], first[1])


def test_mixup_and_cutmix_alternate_with_the_given_probability() -> None:
    augment = AugmentConfig(mixup=0.8, cutmix=1.0, mix_switch=0.25)
    cut = sum(bool((images == images.round()).all()) for images, _ in (mix_batch(augment, step) for step in range(400)))
    assert 70 < cut < 130


def test_a_batch_is_mixed_with_the_given_probability() -> None:
    untouched = sum(mix_batch(AugmentConfig(mixup=0.8, mix_prob=0.3), step)[1] is TARGET for step in range(400))
    assert 240 < untouched < 320


def test_without_mixing_the_batch_is_unchanged() -> None:
    images, target = mix_batch(AugmentConfig())
    assert images is IMAGES
    assert target is TARGET


def test_mixing_does_not_change_torchs_random_state() -> None:
    state = torch.get_rng_state()
    mix_batch(AugmentConfig(mixup=0.8, cutmix=1.0))
    assert torch.equal(torch.get_rng_state(), state)
