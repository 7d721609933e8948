"""ResNet (arXiv 1512.03385) and Steps-ResNet (Table 12). Maps are (B, C, H, W)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from stepsnet.blocks.conv import BasicBranch, BottleneckBranch
from stepsnet.blocks.designs import ResidualPart
from stepsnet.blocks.layers import check_image, conv, start_conv
from stepsnet.blocks.residual import DropPath, Place
from stepsnet.errors import UsageError
from stepsnet.macro import StepPlan
from stepsnet.models.design import PLAIN, Design, StageBuilder, check_width, image_sides
from stepsnet.models.registry import register
from stepsnet.models.vision import STEM, FeatureInfo, VisionModel

Branch = type[BasicBranch] | type[BottleneckBranch]


class Block(nn.Module):
    """ReLU(x + R(x)). The norms are inside the branch R."""

    def __init__(self, place: Place, branch: Branch, residual: ResidualPart) -> None:
        super().__init__()
        self.conv = residual(None, branch(place.width, place.width // branch.expansion), place)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv(x))


class DownsamplingBlock(nn.Module):
    """The first block of a stage: another width and, except in the first stage, half the resolution. It is in no plan.

    The 1×1 convolution of the shortcut has no stride of its own: the pooling in front of it takes every second pixel,
    which gives the same values. PyTorch's strided 1×1 convolution corrupts memory on some CPUs
    (docs/reference/upstream/pytorch-strided-1x1-conv.md).
    """

    def __init__(self, in_chans: int, place: Place, stride: int, branch: Branch) -> None:
        super().__init__()
        self.branch = branch(in_chans, place.width // branch.expansion, stride)
        self.drop_path = DropPath(place.drop_path)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_chans != place.width:
            every_second = nn.AvgPool2d(1, stride) if stride != 1 else nn.Identity()
            self.shortcut = nn.Sequential(
                OrderedDict(pool=every_second, conv=conv(in_chans, place.width, 1), bn=nn.BatchNorm2d(place.width))
            )
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.shortcut(x) + self.drop_path(self.branch(x)))


class ResNet(VisionModel):
    """Plans have the blocks of a stage after its first one. For bottleneck blocks they give bottleneck widths.

    `stem_stride` is 4 (7×7 convolution and max pooling, as in the paper) or 1 (3×3 convolution without pooling, which
    is usual for small images such as those of CIFAR-10; the stages then cost 16 times as much).
    """

    family = "resnet"
    first_conv = "stem.conv"
    block: type[Block] = Block

    def __init__(
        self,
        *,
        depths: Sequence[int],
        bottleneck: bool = False,
        embed_dim: int = 64,
        stem_stride: int = 4,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        design: Design = PLAIN,
    ) -> None:
        super().__init__()
        self.branch: Branch = BottleneckBranch if bottleneck else BasicBranch
        plain = [StepPlan.residual(embed_dim * 2**stage, depth) for stage, depth in enumerate(depths)]
        self.plans = design.plans(plain, int)  # int: the paper rounds ResNet's widths down to 90, 181, 362
        for number, (stage_plan, base) in enumerate(zip(self.plans, plain, strict=True), start=1):
            check_width(stage_plan, base.width, f"stage {number}")
        self.input_size = (in_chans, *image_sides(img_size))
        if stem_stride not in (1, 4):
            raise UsageError(f"stem_stride is {stem_stride!r}, but must be 4, or 1 for small images")
        small = stem_stride == 1
        self.stem = nn.Sequential(
            OrderedDict(
                conv=conv(in_chans, embed_dim, 3) if small else conv(in_chans, embed_dim, 7, 2),
                bn=nn.BatchNorm2d(embed_dim),
                act=nn.ReLU(inplace=True),
                pool=nn.Identity() if small else nn.MaxPool2d(3, 2, 1),
            )
        )
        depth = sum(plan.blocks + 1 for plan in self.plans)
        build = StageBuilder(design, depth, channel_dim=1, expansion=self.branch.expansion)

        def make_block(place: Place) -> nn.Module:
            return self.block(place, self.branch, build.residual)

        self.stages = nn.Sequential()
        stream = embed_dim
        features = [("stem.act", embed_dim, 1 if small else 2)]
        for index, stage_plan in enumerate(self.plans):
            place = build.place(stage_plan.width * self.branch.expansion)
            opening = DownsamplingBlock(stream, place, 2 if index else 1, self.branch)
            self.stages.append(nn.Sequential(OrderedDict(opening=opening, net=build.stage(stage_plan, make_block))))
            stream = place.width
            features.append((f"stages.{index}", stream, stem_stride * 2**index))
        self.num_features = stream
        self.feature_info = FeatureInfo.of(features)
        self.make_head(num_classes, global_pool, drop_rate)

    def reset_layer(self, layer: nn.Module) -> None:
        if type(layer) is nn.Conv2d:
            start_conv(layer)
        else:
            super().reset_layer(layer)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for module in self.modules():
            if isinstance(module, BasicBranch | BottleneckBranch):
                module.start_at_zero()

    def stem_names(self) -> tuple[str, ...]:
        return ("stem.",)

    def forward(self, x: Tensor) -> Tensor:
        check_image(x, self.input_size[0], 1)
        return self.forward_head(self.stages(self.stem(x)))

    def intermediates(
        self,
        x: Tensor,
        indices: Sequence[int],
        *,
        norm: bool = False,  # noqa: ARG002  # its norms are inside the blocks
        stop_early: bool = False,
    ) -> tuple[Tensor, list[Tensor]]:
        check_image(x, self.input_size[0], 1)
        *convolution, pool = self.stem
        for layer in convolution:
            x = layer(x)
        maps = [x] if 0 in indices else []
        x = pool(x)
        if STEM in indices:
            maps.append(x)
        for index, stage in enumerate(list(self.stages)[: max(0, *indices) if stop_early else None], start=1):
            x = stage(x)
            if index in indices:
                maps.append(x)
        return x, maps

    def count_blocks(self) -> int:
        return len(self.blocks_in_order()) + len(
            self.stages
        )  # with the first blocks of the stages, which are in no plan

    def cut_after(self, feature: int) -> None:
        self.stages = nn.Sequential(*list(self.stages)[:feature])  # map 0 is the stem's

    def pool(self, x: Tensor) -> Tensor:
        if self.global_pool == "avg":
            return x.mean(dim=(2, 3))
        return x.amax(dim=(2, 3)) if self.global_pool == "max" else x


register(ResNet, "resnet18", depths=(1, 1, 1, 1))
register(ResNet, "resnet34", depths=(2, 3, 5, 2))
register(ResNet, "resnet50", depths=(2, 3, 5, 2), bottleneck=True)
# Steps with ×0 blocks keep their channels: the last slice passes unchanged to the end of the stage.
register(
    ResNet,
    "steps_resnet18",
    depths=(1, 1, 1, 1),
    plan="64x1; 128x1; 64x2, 90x1, 128x1, 181x1, 256x0; 64x2, 90x1, 128x1, 181x1, 256x1, 362x1, 512x0",
)
# Table 12 prints 64×1, 128×1 for the first two stages, but its totals need 64×2, 128×3.
STEPS_34 = "64x2; 128x3; 64x6, 90x3, 128x3, 181x3, 256x2; 64x2, 90x1, 128x1, 181x1, 256x1, 362x1, 512x1"
register(ResNet, "steps_resnet34", depths=(2, 3, 5, 2), plan=STEPS_34)
register(ResNet, "steps_resnet50", depths=(2, 3, 5, 2), bottleneck=True, plan=STEPS_34)
# ResNet-18 of 16 channels for images of 32×32, small enough to ship trained (stepsnet/pretrained): 0.7 M parameters.
MINI = {"depths": (1, 1, 1, 1), "embed_dim": 16, "img_size": 32, "num_classes": 10}
register(ResNet, "resnet_mini", **MINI)
register(
    ResNet, "steps_resnet_mini", **MINI,
    plan="16x1; 32x1; 16x2, 24x1, 32x1, 48x1, 64x0; 16x2, 24x1, 32x1, 48x1, 64x1, 88x1, 128x0",
)  # fmt: skip
TINY = {"depths": (1, 1, 1, 1), "embed_dim": 8, "img_size": 32, "num_classes": 10}
register(ResNet, "test_resnet", **TINY)
register(ResNet, "test_steps_resnet", **TINY, plan="8x1; 16x1; 16x2, 24x1, 32x0; 32x2, 48x1, 64x0")
