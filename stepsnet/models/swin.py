"""Swin (arXiv 2103.14030) and Steps-Swin (Table 14): window attention at four resolutions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from operator import index

import torch
from torch import Tensor, nn

from stepsnet.blocks.attention import heads_for
from stepsnet.blocks.designs import ResidualPart
from stepsnet.blocks.layers import Mlp, PatchEmbed, PatchMerging
from stepsnet.blocks.residual import Place
from stepsnet.blocks.window import WindowAttention
from stepsnet.macro import StepPlan
from stepsnet.models.design import PLAIN, Design, StageBuilder, head_rule, image_sides
from stepsnet.models.registry import register
from stepsnet.models.vision import FeatureInfo, VisionModel, take_stem

HEAD_DIM = 32
# 17 heads would be nearer to 32 channels each, but Table 14 prints 16.
PRINTED_HEADS = {544: 16}


def heads_of(width: int) -> int:
    return PRINTED_HEADS.get(width) or heads_for(width, HEAD_DIM)


def round_width(width: float) -> int:
    """Round to a width that a number of heads, a multiple of four, divides: 136, 272, 360, 544, 720."""
    heads = 4 * max(round(width / HEAD_DIM / 4), 1)
    return heads * round(width / heads)


class Block(nn.Module):
    """Window attention, shifted in every second block of a stage, then an MLP of ratio 4."""

    make_mlp: type[Mlp] = Mlp

    def __init__(self, place: Place, heads: int, window: int, residual: ResidualPart) -> None:
        super().__init__()
        width = place.width
        attention = WindowAttention(width, heads, window, shifted=place.position % 2 == 1)
        self.attn = residual(nn.LayerNorm(width), attention, place)
        self.mlp = residual(nn.LayerNorm(width), self.make_mlp(width, 4 * width), place)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attn(x))


class Swin(VisionModel):
    """Each stage is as wide as the last step of its plan, independent of the stage before."""

    family = "swin"
    output_fmt = "NHWC"
    first_conv = "patch_embed.proj"
    block: type[Block] = Block

    def __init__(
        self,
        *,
        embed_dim: int,
        depths: Sequence[int],
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 4,
        window_size: int = 7,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        head_dim: int | None = None,
        design: Design = PLAIN,
    ) -> None:
        super().__init__()
        plain = [StepPlan.residual(embed_dim * 2**stage, depth) for stage, depth in enumerate(depths)]
        self.plans = design.plans(plain, round_width)
        self.window = window_size
        self.heads = head_rule(heads_of, head_dim)
        self.input_size = (in_chans, *image_sides(img_size, patch_size))
        widths = [plan.width for plan in self.plans]
        self.patch_embed = PatchEmbed(in_chans, widths[0], patch_size, nn.LayerNorm(widths[0]))
        build = StageBuilder(design, sum(plan.blocks for plan in self.plans))

        def make_block(place: Place) -> nn.Module:
            return self.block(place, self.heads(place.width), window_size, build.residual)

        # Each stage except the first begins with patch merging.
        openings: list[dict[str, nn.Module]] = [{}]
        openings += [{"merging": PatchMerging(before, width)} for before, width in pairwise(widths)]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(OrderedDict(**opening, net=build.stage(plan, make_block)))
                for opening, plan in zip(openings, self.plans, strict=True)
            )
        )
        self.norm: nn.Module = nn.LayerNorm(widths[-1])
        self.num_features = widths[-1]
        self.feature_info = FeatureInfo.of(
            (f"stages.{stage}", width, patch_size * 2**stage) for stage, width in enumerate(widths)
        )
        self.make_head(num_classes, global_pool, drop_rate)

    def no_weight_decay(self) -> set[str]:
        return {name for name, _ in self.named_parameters() if name.endswith("bias_table")}

    def stem_names(self) -> tuple[str, ...]:
        return ("patch_embed.",)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.norm(self.stages(self.embed(x))))

    def embed(self, x: Tensor) -> Tensor:
        """The patches (B, H, W, C)."""
        if torch.compiler.is_dynamo_compiling():
            # Code for one image size and any batch. Windows over sizes that are symbols take minutes to compile.
            for side in x.shape[2:]:
                index(side)
        return self.patch_embed(x)

    def intermediates(
        self, x: Tensor, indices: Sequence[int], *, norm: bool = False, stop_early: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        x, maps = take_stem(self.embed(x), indices)
        stages = list(self.stages)[: max(indices) + 1 if stop_early else None]
        for number, stage in enumerate(stages):
            x = stage(x)
            if number in indices:
                normed = norm and number == len(self.plans) - 1
                maps.append((self.norm(x) if normed else x).permute(0, 3, 1, 2))
        return self.norm(x) if len(stages) == len(self.plans) else x, maps

    def cut_after(self, feature: int) -> None:
        if feature + 1 < len(self.plans):  # the norm fits the last stage only
            self.norm = nn.Identity()
        self.stages = nn.Sequential(*list(self.stages)[: feature + 1])

    def pool(self, x: Tensor) -> Tensor:
        if self.global_pool == "avg":
            return x.mean(dim=(1, 2))
        return torch.amax(x, dim=(1, 2)) if self.global_pool == "max" else x


# Table 14 prints a last step of 768×0 (1024×0) in stage 4. Only networks without that step have the printed sizes
# (27.8, 49.1, 86.7 M, and 58 M with UPerNet): stage 4, its patch merging, norm and head are 544 (720) wide.
STAGE_4 = "192x4, 272x2, 384x2, 544x2"
STAGE_4_BASE = "256x4, 360x2, 512x2, 720x2"
PLANS = {
    "tiny": f"96x2; 192x2; 192x6, 272x3, 384x3; {STAGE_4}",
    "small": f"96x2; 192x2; 192x6, 272x3, 384x15; {STAGE_4}",
    "base": f"128x2; 256x2; 256x6, 360x3, 512x15; {STAGE_4_BASE}",
}
SIZES = {"tiny": (96, (2, 2, 6, 2)), "small": (96, (2, 2, 18, 2)), "base": (128, (2, 2, 18, 2))}


def register_sizes(family: type[Swin], prefix: str) -> None:
    """The three sizes of a family and their StepsNet versions."""
    for size, (width, depths) in SIZES.items():
        register(family, f"{prefix}_{size}", embed_dim=width, depths=depths)
        register(family, f"steps_{prefix}_{size}", embed_dim=width, depths=depths, plan=PLANS[size])
    # Maps of 16, 8, 4 and 2 with windows of 2: all except the last have shifted windows.
    tiny = {
        "embed_dim": 6,
        "depths": (2, 1, 2, 2),
        "img_size": 32,
        "patch_size": 2,
        "window_size": 2,
        "num_classes": 10,
    }
    register(family, f"test_{prefix}", **tiny)
    register(family, f"test_steps_{prefix}", **tiny, plan="6x2; 12x1; 12x2, 16x1, 24x1; 24x2, 34x1, 48x1")


register_sizes(Swin, "swin")

# Table 5(b), fixed FLOPs: deeper networks are narrower.
for blocks, width in {24: 68, 48: 48, 72: 39, 96: 34}.items():
    unit = blocks // 12
    register(Swin, f"swin_deep_d{blocks}", embed_dim=width, depths=(unit, unit, 9 * unit, unit))
# 14 blocks: stage 4 has four blocks and is 544 wide, the rest is plain. The paper does not print the plans of 48, 64
# and 96 blocks. These are reconstructed: √2 widths, depths that fall from narrow to wide, the exact number of blocks,
# and parameters and MACs that round to the printed 28.8 M and 4.6 G.
RECONSTRUCTED = {
    48: "68x10, 96x8, 136x6, 192x4, 272x3, 384x2; 192x4, 272x3, 384x2, 544x2",
    64: "96x12, 136x7, 192x4, 272x3, 384x2; 96x14, 136x8, 192x4, 272x3, 384x2, 544x1",
    96: "68x28, 96x16, 136x8, 192x4, 272x2, 384x1; 96x14, 136x8, 192x5, 272x3, 384x2, 544x1",
}
for blocks, stages in {14: "384x6; 544x4", **RECONSTRUCTED}.items():
    register(Swin, f"steps_swin_deep_d{blocks}", embed_dim=96, depths=(2, 2, 6, 2), plan=f"96x2; 192x2; {stages}")
