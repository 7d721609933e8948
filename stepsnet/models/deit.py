"""DeiT (arXiv 2012.12877) and Steps-DeiT (Table 13): a Vision Transformer of one resolution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepsnet.blocks.attention import Attention, heads_for
from stepsnet.blocks.designs import ResidualPart
from stepsnet.blocks.layers import Mlp, PatchEmbed
from stepsnet.blocks.residual import Place
from stepsnet.macro import Stack, StepPlan
from stepsnet.models.design import PLAIN, Design, StageBuilder, check_width, head_rule, image_sides, multiple_of
from stepsnet.models.registry import register
from stepsnet.models.vision import FeatureInfo, VisionModel, take_stem

HEAD_DIM = 64
round_width = multiple_of(2)


def heads_of(width: int) -> int:
    return heads_for(width, HEAD_DIM)


def resize_positions(positions: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Positions of a class token and of a grid of patches, (1, 1 + H·W, C), interpolated for another grid."""
    token, patches = positions.float().split((1, old[0] * old[1]), dim=1)
    patches = patches.view(1, *old, -1).permute(0, 3, 1, 2)
    patches = F.interpolate(patches, new, mode="bicubic", antialias=True)
    return torch.cat((token, patches.permute(0, 2, 3, 1).flatten(1, 2)), dim=1).to(positions.dtype)


class Block(nn.Module):
    """Attention, then an MLP of ratio 4. Both are residual branches with a layer norm first."""

    def __init__(self, place: Place, heads: int, residual: ResidualPart) -> None:
        super().__init__()
        width = place.width
        self.attn = residual(nn.LayerNorm(width, eps=1e-6), Attention(width, heads), place)
        self.mlp = residual(nn.LayerNorm(width, eps=1e-6), Mlp(width, 4 * width), place)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attn(x))


class DeiT(VisionModel):
    """Vision Transformer. The plan ends at `embed_dim`; the plain network is `embed_dim` × `depth`."""

    family = "deit"
    block: type[Block] = Block
    pools = ("token", "avg", "")
    output_fmt = "NLC"
    first_conv = "patch_embed.proj"
    last_maps = 3

    def __init__(
        self,
        *,
        embed_dim: int,
        depth: int,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        drop_rate: float = 0.0,
        head_dim: int | None = None,
        design: Design = PLAIN,
    ) -> None:
        super().__init__()
        (plan,) = self.plans = design.plans([StepPlan.residual(embed_dim, depth)], round_width)
        check_width(plan, embed_dim, "the model")
        height, width = image_sides(img_size, patch_size)
        self.input_size = (in_chans, height, width)
        self.grid = (-(-height // patch_size), -(-width // patch_size))
        self.patch_embed = PatchEmbed(in_chans, embed_dim, patch_size)
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + self.grid[0] * self.grid[1], embed_dim))
        heads = head_rule(heads_of, head_dim)
        build = StageBuilder(design, plan.blocks)
        self.net = build.stage(plan, lambda place: self.block(place, heads(place.width), build.residual))
        self.norm: nn.Module = nn.LayerNorm(embed_dim, eps=1e-6)
        self.num_features = embed_dim
        names = {block: name for name, block in self.named_modules()}
        self.feature_info = FeatureInfo.of((names[block], embed_dim, patch_size) for block in self.blocks_in_order())
        self.make_head(num_classes, global_pool, drop_rate)
        self.init_own_parameters()

    def init_own_parameters(self) -> None:
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def no_weight_decay(self) -> set[str]:
        return {"cls_token", "pos_embed"}

    def stem_names(self) -> tuple[str, ...]:
        return ("patch_embed.", "cls_token", "pos_embed")

    def positions(self, grid: tuple[int, int]) -> Tensor:
        """The learned positions, interpolated for a grid of another size than the model's own."""
        if grid == self.grid:
            return self.pos_embed
        return resize_positions(self.pos_embed, self.grid, grid)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.norm(self.net(self.tokens(self.patch_embed(x)))))

    def tokens(self, x: Tensor) -> Tensor:
        """The class token and the patches (B, H, W, C), with their positions: (B, 1 + H·W, C)."""
        B, height, width, _ = x.shape
        return torch.cat((self.cls_token.expand(B, -1, -1), x.flatten(1, 2)), dim=1) + self.positions((height, width))

    def intermediates(
        self, x: Tensor, indices: Sequence[int], *, norm: bool = False, stop_early: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        x, stem = take_stem(self.patch_embed(x), indices)
        B, height, width, _ = x.shape
        x = self.tokens(x)
        x, states = self.net.walk(x, after=indices, stop_early=stop_early) if indices else (self.net(x), [])
        maps = [(self.norm(state) if norm else state)[:, 1:] for state in states]
        return self.norm(x), stem + [tokens.transpose(1, 2).reshape(B, -1, height, width) for tokens in maps]

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        height, width = image_sides(img_size, self.patch_embed.patch)
        grid = (-(-height // self.patch_embed.patch), -(-width // self.patch_embed.patch))
        if grid != self.grid:
            with torch.no_grad():
                self.pos_embed = nn.Parameter(self.positions(grid), self.pos_embed.requires_grad)
            self.grid = grid
        super().set_input_size(img_size)

    def cut_after(self, feature: int) -> None:
        left = feature + 1
        for stack in self.net.modules():
            if isinstance(stack, Stack):
                stack.blocks = stack.blocks[:left]
                left -= len(stack.blocks)

    def pool(self, x: Tensor) -> Tensor:
        if self.global_pool == "token":
            return x[:, 0]
        return x[:, 1:].mean(dim=1) if self.global_pool == "avg" else x


register(DeiT, "deit_tiny", embed_dim=192, depth=12)
register(DeiT, "deit_small", embed_dim=384, depth=12)
register(DeiT, "deit_base", embed_dim=768, depth=12)
register(DeiT, "steps_deit_tiny", embed_dim=192, depth=12, plan="96x12, 136x6, 192x6")
register(DeiT, "steps_deit_small", embed_dim=384, depth=12, plan="192x12, 272x6, 384x6")
# Table 13 prints the 302-layer plan below under this name. Only this plan has the 86.7 M parameters of Table 1.
register(DeiT, "steps_deit_base", embed_dim=768, depth=12, plan="384x12, 544x6, 768x6")
register(DeiT, "steps_deit_small_d60", embed_dim=384, depth=12, plan="96x12, 136x12, 192x12, 272x12, 384x12")

# Table 5(a), fixed width: residual networks of 136 channels and seven-step networks of widths 136·2^((i-5)/2).
for blocks in (24, 36, 48, 72, 96):
    register(DeiT, f"deit_deep_d{blocks}", embed_dim=136, depth=blocks)
# The rule is (D, D/2 … D/2). The paper gives no depths for 36 blocks; these have its 8.8 M parameters and 2.0 G MACs.
for blocks, depths in {
    24: (6, 3, 3, 3, 3, 3, 3),
    36: (9, 5, 4, 4, 5, 4, 5),
    48: (12, 6, 6, 6, 6, 6, 6),
    72: (18, 9, 9, 9, 9, 9, 9),
    96: (24, 12, 12, 12, 12, 12, 12),
}.items():
    register(
        DeiT,
        f"steps_deit_deep_d{blocks}",
        embed_dim=272,
        depth=depths[0],
        plan=StepPlan((34, 48, 68, 96, 136, 192, 272), depths),
    )

register(DeiT, "test_deit", embed_dim=32, depth=4, img_size=32, patch_size=8, num_classes=10)
register(
    DeiT, "test_steps_deit", embed_dim=32, depth=4, plan="16x4, 22x2, 32x2", img_size=32, patch_size=8, num_classes=10
)
