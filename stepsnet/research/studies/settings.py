"""The data and recipes of the studies. What is here is part of their registration: a changed word is another study."""

from __future__ import annotations

from stepsnet.research.studies.study import Setting

GUTENBERG = Setting(
    "gutenberg", "gutenberg", ("iters=240", "schedule.warmup_iters=24", "checkpoint.every=50"),
    "Gutenberg books, 240 steps of 32 × 128 bytes", {"vocab_size": 256, "seq_len": 128}, "bits_per_byte", data="gutenberg",
    looks=(1, 20, 100, 240),
)

CIFAR_WORDS = (
    "iters=500", "batch_size=64", "schedule.warmup_iters=50", "schedule.warmup_epochs=0", "eval.every=0", "eval.batch_size=250",
    "checkpoint.every=50",
)
CIFAR10 = Setting(
    "cifar10", "cifar10", ("model=deit_tiny", "model_args.patch_size=8", *CIFAR_WORDS),
    "CIFAR-10 in 8×8 patches, 500 steps of 64 pictures", {"num_classes": 10, "in_chans": 3, "img_size": 32}, "top1", data="cifar10",
    looks=(1, 20, 100, 500),
)
CIFAR10_SWIN = Setting(
    "cifar10swin", "cifar10", ("model=swin_tiny", "model_args.patch_size=2", "model_args.window_size=4", *CIFAR_WORDS),
    "CIFAR-10 in 2×2 patches and windows of 4×4, 500 steps of 64 pictures", {"num_classes": 10, "in_chans": 3, "img_size": 32}, "top1",
    data="cifar10", looks=(1, 20, 100, 500),
)

DIGITS_WORDS = (
    "batch_size=32", "smoothing=0", "augment.crop=none", "schedule.warmup_epochs=0", "schedule.end=0.1", "eval.every=0",
    "checkpoint.every=25",
)
DIGITS = Setting(
    "digits", "digits",
    ("model=deit_tiny", "model_args.patch_size=2", "data.img_size=8", "iters=200", "schedule.warmup_iters=20", *DIGITS_WORDS),
    "scikit-learn's digits, 8×8 in 2×2 patches, 200 steps of 32 pictures", {"num_classes": 10, "in_chans": 1, "img_size": 8}, "top1",
    looks=(1, 20, 200),
)
DIGITS_SWIN = Setting(
    "digitsswin", "digits",
    ("model=swin_tiny", "model_args.patch_size=2", "model_args.window_size=4", "data.img_size=16", "iters=100", "schedule.warmup_iters=10",
     *DIGITS_WORDS),
    "scikit-learn's digits, enlarged to 16×16, in 2×2 patches and windows of 4×4, 100 steps of 32 pictures",
    {"num_classes": 10, "in_chans": 1, "img_size": 16}, "top1", looks=(1, 10, 100),
)
PYTHON_DOCS = Setting(
    "python_docs", "python_docs",
    ("iters=200", "batch_size=8", "data.seq_len=64", "data.valid_windows=256", "schedule.warmup_iters=20", "eval.every=0",
     "eval.batch_size=64", "checkpoint.every=25"),
    "the documentation of the running Python, 200 steps of 8 × 64 bytes", {"vocab_size": 256, "seq_len": 64}, "bits_per_byte",
    looks=(1, 20, 200),
)

IMAGENET_SIZE = 1_281_167
IMAGENET_SHAPE = {"num_classes": 1000, "in_chans": 3, "img_size": 224}
IMAGENET_DEIT = Setting(
    "imagenet", "imagenet_deit", (), "ImageNet-1K, 300 epochs as DeiT", IMAGENET_SHAPE, "top1", data="imagenet", epoch=IMAGENET_SIZE,
)
IMAGENET_SWIN = Setting(
    "imagenetswin", "imagenet_swin", (), "ImageNet-1K, 300 epochs as Swin", IMAGENET_SHAPE, "top1", data="imagenet", epoch=IMAGENET_SIZE,
)
WIKITEXT103 = Setting(
    "wikitext103", "wikitext103", (), "WikiText-103, 20 epochs of 128,000 tokens a step", {"vocab_size": 50000, "seq_len": 128},
    "perplexity_per_token", data="wikitext103", epoch=950_000,
)
