"""Data, recipes and networks of the studies. They are part of the registration: a changed word is another study."""

from __future__ import annotations

from collections.abc import Mapping

from stepsnet.macro.plan import StepPlan
from stepsnet.report import svg
from stepsnet.research.studies.study import Arm, Setting

CIFAR_SHAPE = {"num_classes": 10, "in_chans": 3, "img_size": 32}
IMAGENET_SHAPE = {"num_classes": 1000, "in_chans": 3, "img_size": 224}
IMAGENET_SIZE = 1_281_167
CIFAR_WORDS = (
    "iters=500", "batch_size=64", "schedule.warmup_iters=50", "schedule.warmup_epochs=0", "eval.every=0",
    "eval.batch_size=250", "checkpoint.every=50",
)  # fmt: skip
DIGITS_WORDS = (
    "batch_size=32", "smoothing=0", "augment.crop=none", "schedule.warmup_epochs=0", "schedule.end=0.1", "eval.every=0",
    "checkpoint.every=25",
)  # fmt: skip

GUTENBERG = Setting(
    "gutenberg", "gutenberg", ("iters=240", "schedule.warmup_iters=24", "checkpoint.every=50"),
    "Gutenberg books, 240 steps of 32 × 128 bytes", {"vocab_size": 256, "seq_len": 128}, "bits_per_byte",
    data="gutenberg", looks=(1, 20, 100, 240),
)  # fmt: skip
CIFAR10 = Setting(
    "cifar10", "cifar10", ("model=deit_tiny", "model_args.patch_size=8", *CIFAR_WORDS),
    "CIFAR-10 in 8×8 patches, 500 steps of 64 images", CIFAR_SHAPE, "top1", data="cifar10", looks=(1, 20, 100, 500),
)  # fmt: skip
CIFAR10_SWIN = Setting(
    "cifar10swin", "cifar10",
    ("model=swin_tiny", "model_args.patch_size=2", "model_args.window_size=4", *CIFAR_WORDS),
    "CIFAR-10 in 2×2 patches and windows of 4×4, 500 steps of 64 images", CIFAR_SHAPE, "top1", data="cifar10",
    looks=(1, 20, 100, 500),
)  # fmt: skip
DIGITS = Setting(
    "digits", "digits",
    ("model=deit_tiny", "model_args.patch_size=2", "data.img_size=8", "iters=200", "schedule.warmup_iters=20",
     *DIGITS_WORDS),
    "scikit-learn's digits, 8×8 in 2×2 patches, 200 steps of 32 images",
    {"num_classes": 10, "in_chans": 1, "img_size": 8}, "top1", looks=(1, 20, 200),
)  # fmt: skip
DIGITS_SWIN = Setting(
    "digitsswin", "digits",
    ("model=swin_tiny", "model_args.patch_size=2", "model_args.window_size=4", "data.img_size=16", "iters=100",
     "schedule.warmup_iters=10", *DIGITS_WORDS),
    "scikit-learn's digits, enlarged to 16×16, in 2×2 patches and windows of 4×4, 100 steps of 32 images",
    {"num_classes": 10, "in_chans": 1, "img_size": 16}, "top1", looks=(1, 10, 100),
)  # fmt: skip
IMAGENET_DEIT = Setting(
    "imagenet", "imagenet_deit", (), "ImageNet-1K, 300 epochs as DeiT", IMAGENET_SHAPE, "top1", data="imagenet",
    epoch=IMAGENET_SIZE,
)  # fmt: skip
IMAGENET_SWIN = Setting(
    "imagenetswin", "imagenet_swin", (), "ImageNet-1K, 300 epochs as Swin", IMAGENET_SHAPE, "top1", data="imagenet",
    epoch=IMAGENET_SIZE,
)  # fmt: skip

JOINS = {"steps": "plain", **{name: name for name in ("matched", "matched_grad", "unit", "matched_down")}}
"""Names of Steps networks in cells, and their joins."""
LABELS = {
    "residual": "residual", "steps": "Steps, plain joins (Eq. 5)", "matched": "Steps, matched joins",
    "layerscale": "residual + LayerScale", "rezero": "residual + ReZero", "deepnorm": "residual + DeepNorm",
    "hyper": "residual + hyper-connections (2)",
}  # fmt: skip
COLORS = {
    "residual": svg.RESIDUAL, "steps": svg.STEPS, "matched": svg.MATCHED, "matched_grad": svg.SERIES[3],
    "unit": svg.SERIES[4], "matched_down": svg.SERIES[5],
    "layerscale": svg.SERIES[3], "rezero": svg.SERIES[4], "deepnorm": svg.SERIES[5], "hyper": "faint",
}  # fmt: skip
REMEDIES = ("layerscale", "rezero", "deepnorm", "hyper")

WIDTHS = {GUTENBERG.key: 64, CIFAR10.key: 64, DIGITS.key: 32}
"""Of the residual networks at fixed width."""
WIDE = {
    12: "16x2, 24x1, 32x2, 48x2, 64x2, 90x2, 128x1", 24: "16x6, 24x3, 32x3, 48x3, 64x3, 90x3, 128x3",
    48: "16x12, 24x6, 32x6, 48x6, 64x6, 90x6, 128x6", 96: "16x24, 24x12, 32x12, 48x12, 64x12, 90x12, 128x12",
}  # fmt: skip
NARROW = {
    6: "16x1, 22x2, 32x1, 44x2", 12: "8x2, 12x1, 18x2, 22x2, 34x2, 44x2, 64x1",
    24: "8x6, 12x3, 18x3, 22x3, 34x3, 44x3, 64x3", 48: "8x12, 12x6, 18x6, 22x6, 34x6, 44x6, 64x6",
}  # fmt: skip
PLANS: Mapping[str, Mapping[int, str]] = {
    GUTENBERG.key: WIDE, CIFAR10.key: WIDE, DIGITS.key: NARROW,
}  # fmt: skip
"""Steps plans with the blocks and cost of the residual network at fixed width: seven steps of (D, D/2 … D/2) blocks."""
TOP = {CIFAR10.key: (128, 12), DIGITS.key: (64, 6), CIFAR10_SWIN.key: (32, 12), DIGITS_SWIN.key: (16, 12)}
"""Width and blocks of the plain network that is cut into steps at fixed cost; of Swin the first stage's width."""


def residual(setting: Setting, blocks: int, width: int | None = None) -> Arm:
    """The plain stack at the setting's fixed width, or at `width`."""
    fixed = WIDTHS[setting.key]
    name = "residual" if width in (None, fixed) else f"residual_w{width}"
    width = width or fixed
    words = (f"plan={width}x{blocks}", f"model_args.embed_dim={width}")
    return Arm(setting, name, blocks, words, LABELS["residual"], COLORS["residual"])


def remedy(setting: Setting, blocks: int, name: str) -> Arm:
    """The residual network with another residual design."""
    words = (*residual(setting, blocks).words, f"model_args.residual={name}")
    return Arm(setting, name, blocks, words, LABELS[name], COLORS[name])


def steps(setting: Setting, blocks: int, name: str = "steps") -> Arm:
    """The Steps network of the same blocks and cost, with the join of that name."""
    return planned(setting, name, PLANS[setting.key][blocks], LABELS[name], COLORS[name], join=JOINS[name])


def planned(
    setting: Setting, name: str, plan: str, label: str, color: str = svg.STEPS, *, join: str = "plain"
) -> Arm:
    """Any plan of one stage."""
    parsed = StepPlan.parse(plan)
    words = (f"plan={plan}", f"model_args.embed_dim={parsed.width}", f"join={join}")
    return Arm(setting, name, parsed.blocks, words, label, color)


def in_steps(setting: Setting, number: int) -> Arm:
    """The setting's plain network in `number` steps by the paper's rule (Table 8)."""
    width, depth = TOP[setting.key]
    plan = str(StepPlan.default(width, depth, number, lambda value: 2 * round(value / 2)))
    return planned(setting, f"{number}steps", plan, steps_label(number), steps_color(number))


def steps_label(number: int) -> str:
    return "1 step (residual)" if number == 1 else f"{number} steps"


def steps_color(number: int) -> str:
    return svg.RESIDUAL if number == 1 else svg.STEPS
