"""Recipes for image classification. They take any vision model."""

from __future__ import annotations

from stepsnet.data.config import AugmentConfig, DataConfig, deit_augment
from stepsnet.train.config import EvalConfig, OptimConfig, ScheduleConfig, TrainConfig

_ADAMW = OptimConfig(name="adamw", weight_decay=0.05, clip=1.0)


def digits() -> TrainConfig:
    """Handwritten digits without a download: scikit-learn's 1797 of 8×8, enlarged to 32×32. It takes any vision model.

        stepsnet train digits
        stepsnet train digits model=test_deit
        stepsnet train digits model=steps_deit_tiny model_args.patch_size=8 iters=100

    Data: 1437 digits for training, 360 for validation, split by writer: validation has handwriting not seen in
    training.
    Time: 30 epochs of 1437 digits, about 20 seconds with the default model on one core.
    Expected: compare with the baseline of equal cost under the same recipe (model=test_deit).
    """
    return TrainConfig(
        task="classification",
        model="test_steps_deit",
        epochs=30,
        batch_size=64,
        lr=2e-3,
        smoothing=0.1,
        data=DataConfig(kind="digits", img_size=32, crop_pct=1.0),
        augment=AugmentConfig(crop="pad", crop_padding=2),  # no flip: a mirrored 2 is not a 2
        optim=_ADAMW,
        schedule=ScheduleConfig(kind="cosine", warmup_epochs=2),
        eval=EvalConfig(every=110),
    )


def cifar10() -> TrainConfig:
    """CIFAR-10 from scratch: pad, crop and flip, AdamW, a few epochs. It takes any vision model.

        stepsnet train cifar10 data.root=cifar10.npz
        stepsnet train cifar10 data.root=cifar10.npz model=resnet18 model_args.stem_stride=1
        stepsnet train cifar10 data.root=cifar10.npz model=steps_deit_tiny model_args.patch_size=4

    Data: one `.npz` (train_images, train_labels, test_images, test_labels; uint8), or the folder cifar-10-batches-py as
    distributed. Images are 32×32. A ResNet reduces them to 8×8 before its first stage. model_args.stem_stride=1 keeps
    32×32, the usual choice for CIFAR-10, at 14 times the cost; data.img_size=64 enlarges the images, at 4 times.
    Time: 20 epochs of 50,000 images.
    Expected: compare with the baseline of equal cost under the same recipe, not with tuned results elsewhere.
    """
    return TrainConfig(
        task="classification",
        model="steps_resnet18",
        epochs=20,
        batch_size=128,
        lr=1e-3,
        smoothing=0.1,
        data=DataConfig(kind="cifar10", img_size=32, crop_pct=1.0),
        augment=AugmentConfig(crop="pad", crop_padding=4, flip=0.5),
        optim=_ADAMW,
        schedule=ScheduleConfig(kind="cosine", warmup_epochs=1),
    )


def fashion_mnist() -> TrainConfig:
    """Fashion-MNIST from scratch: one channel, 28×28 padded to 32×32. It takes any vision model.

        stepsnet train fashion_mnist data.root=FOLDER
        stepsnet train fashion_mnist data.root=FOLDER model=steps_deit_tiny model_args.patch_size=4

    Data: the four idx files, `.gz` or unpacked, anywhere below FOLDER.
    Time: 10 epochs of 60,000 images.
    Expected: compare with the baseline of equal cost under the same recipe (model=resnet18).
    """
    return TrainConfig(
        task="classification",
        model="steps_resnet18",
        epochs=10,
        batch_size=128,
        lr=1e-3,
        smoothing=0.1,
        data=DataConfig(kind="fashion_mnist", img_size=32, crop_pct=1.0),
        augment=AugmentConfig(crop="pad", crop_padding=2, flip=0.5),
        optim=_ADAMW,
        schedule=ScheduleConfig(kind="cosine", warmup_epochs=1),
    )


def tiny_imagenet() -> TrainConfig:
    """Tiny ImageNet from scratch: 100,000 images of 64×64, 200 classes. It takes any vision model.

        stepsnet train tiny_imagenet data.root=tiny-imagenet-200 workers=4
        stepsnet train tiny_imagenet data.root=tiny-imagenet-200 model=steps_deit_tiny model_args.patch_size=8

    Data: the folder as distributed, with wnids in train/ and the validation classes in val/val_annotations.txt.
    Time: 100 epochs of 100,000 images, for a GPU. Not run here.
    Expected: compare with the baseline of equal cost under the same recipe (model=resnet18).
    """
    return TrainConfig(
        task="classification",
        model="steps_resnet18",
        epochs=100,
        batch_size=256,
        lr=1e-3,
        workers=4,
        drop_path=0.1,
        smoothing=0.1,
        data=DataConfig(kind="tiny_imagenet", img_size=64, crop_pct=1.0),
        augment=AugmentConfig(
            crop="resized", crop_min_scale=0.25, flip=0.5, randaugment=9, randaugment_std=0.5, mixup=0.8, cutmix=1.0
        ),
        optim=_ADAMW,
        schedule=ScheduleConfig(kind="cosine", warmup_epochs=5),
    )


def image_folder() -> TrainConfig:
    """Your own images: one folder per class. It takes any vision model.

        stepsnet train image_folder data.root=IMAGES
        stepsnet train image_folder data.root=IMAGES data.img_size=128 model=steps_resnet18 data.strict=true

    Data: IMAGES/train/<class>/… and IMAGES/val/<class>/…, or IMAGES/<class>/…, of which a tenth of each class becomes
    the validation set (data.valid_fraction). Unreadable images are named, counted and skipped; data.strict=true stops
    instead.
    Time: 50 epochs of your images. For small sets, use a smaller batch (batch_size=32) and more epochs.
    Expected: training is from scratch, so good results need a few thousand images per class.
    """
    return TrainConfig(
        task="classification",
        model="steps_resnet18",
        epochs=50,
        batch_size=64,
        lr=5e-4,
        workers=2,
        smoothing=0.1,
        data=DataConfig(kind="image_folder", img_size=224, crop_pct=0.875),
        augment=AugmentConfig(
            crop="resized", crop_min_scale=0.25, flip=0.5, color_jitter=0.3, cutmix=1.0, mix_prob=0.5
        ),
        optim=_ADAMW,
        schedule=ScheduleConfig(kind="cosine", warmup_epochs=2),
    )


def _imagenet(*, model: str, drop_path: float, clip: float) -> TrainConfig:
    """The paper's setting for all families (its appendix): 300 epochs of AdamW with DeiT's augmentation.

    Learning rate 1e-3 per 1024 images, scaled linearly: from 1e-6 over 20 epochs of warm-up, then cosine to 1e-5.
    """
    return TrainConfig(
        task="classification",
        model=model,
        epochs=300,
        batch_size=1024,
        lr=1e-3,
        workers=8,
        precision="bf16",
        drop_path=drop_path,
        smoothing=0.1,
        data=DataConfig(kind="image_folder", img_size=224, crop_pct=0.875),
        augment=deit_augment(),
        optim=OptimConfig(name="adamw", lr_batch=1024, weight_decay=0.05, clip=clip),
        schedule=ScheduleConfig(kind="cosine", warmup_epochs=20, start=1e-3, end=1e-2),
    )


def imagenet_deit() -> TrainConfig:
    """Steps-DeiT on ImageNet-1K, with the paper's and DeiT's settings.

        torchrun --nproc-per-node 8 -m stepsnet train imagenet_deit parallel=ddp data.root=IMAGENET
        stepsnet train imagenet_deit --dry-run data.root=IMAGENET model=steps_deit_tiny

    Data: IMAGENET/train/<class>/*.JPEG and IMAGENET/val/<class>/*.JPEG. Baseline: model=deit_small.
    Time: 300 epochs of 1.28 million images, days on 8 GPUs. Not run here.
    Expected (the paper's Table 1): top-1 next to DeiT's at equal cost, `stepsnet reproduce table1`. DeiT's repeated
    augmentation is not used, since the paper does not mention it. Its EMA is not used either: the published accuracies
    are without it.
    """
    return _imagenet(model="steps_deit_small", drop_path=0.1, clip=0.0)  # 0.1 at every size


def imagenet_swin() -> TrainConfig:
    """Steps-Swin on ImageNet-1K, with the paper's and Swin's settings.

        torchrun --nproc-per-node 8 -m stepsnet train imagenet_swin parallel=ddp data.root=IMAGENET
        stepsnet train imagenet_swin --dry-run data.root=IMAGENET model=steps_swin_base drop_path=0.5

    Data: IMAGENET/train/<class>/*.JPEG and IMAGENET/val/<class>/*.JPEG. Baseline: model=swin_tiny.
    Swin's stochastic depth grows with the model: drop_path=0.2 (tiny), 0.3 (small), 0.5 (base). Swin++ uses the same
    recipe.
    Time: 300 epochs of 1.28 million images, days on 8 GPUs. Not run here.
    Expected (the paper's Table 1): top-1 next to Swin's at equal cost, `stepsnet reproduce table1`.
    """
    return _imagenet(model="steps_swin_tiny", drop_path=0.2, clip=5.0)  # unlike DeiT, Swin clips the gradient norm


def imagenet_resnet() -> TrainConfig:
    """Steps-ResNet on ImageNet-1K. The paper uses one setting for all families, with AdamW and strong augmentation.

        torchrun --nproc-per-node 8 -m stepsnet train imagenet_resnet parallel=ddp data.root=IMAGENET
        torchrun --nproc-per-node 8 -m stepsnet train imagenet_resnet parallel=ddp data.root=DIR model=steps_resnet18

    Data: IMAGENET/train/<class>/*.JPEG and IMAGENET/val/<class>/*.JPEG. Baseline: model=resnet50.
    Time: 300 epochs of 1.28 million images, days on 8 GPUs. Not run here.
    Expected (the paper's Table 1): top-1 next to ResNet's at equal cost, `stepsnet reproduce table1`. The paper states
    no stochastic depth for ResNet, so there is none.
    """
    return _imagenet(model="steps_resnet50", drop_path=0.0, clip=0.0)
