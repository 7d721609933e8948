"""Names of weights: from those of timm and transformers to ours, for ResNet, DeiT (ViT) and Swin of one step."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

COMPUTED = ("relative_position_index", "attn_mask")
"""Tables in older checkpoints of timm's Swin; ours are computed when needed."""


def _resnet_key(key: str) -> str:
    key = re.sub(r"^conv1\.", "stem.conv.", key)
    key = re.sub(r"^bn1\.", "stem.bn.", key)
    key = re.sub(r"^fc\.", "head.", key)
    key = key.replace(".downsample.0.", ".shortcut.conv.").replace(".downsample.1.", ".shortcut.bn.")

    def rename(found: re.Match[str]) -> str:
        """The first block of a timm layer is the opening of our stage; the others are the blocks of its plan."""
        stage, block, part = int(found[1]) - 1, int(found[2]), found[3]
        if block:
            return f"stages.{stage}.net.steps.0.blocks.{block - 1}.conv.branch.{part}"
        return f"stages.{stage}.opening.{part if part == 'shortcut' else 'branch.' + part}"

    return re.sub(r"^layer(\d+)\.(\d+)\.(\w+)", rename, key)


def _deit_key(key: str) -> str:
    return _transformer_key(re.sub(r"^blocks\.", "net.steps.0.blocks.", key))


def _swin_key(key: str) -> str:
    key = re.sub(r"^layers\.(\d+)\.blocks\.", r"stages.\1.net.steps.0.blocks.", key)
    key = re.sub(r"^layers\.(\d+)\.downsample\.", r"stages.\1.merging.", key)
    key = re.sub(r"^head\.fc\.", "head.", key)
    return _transformer_key(key.replace(".relative_position_bias_table", ".bias_table"))


def _transformer_key(key: str) -> str:
    """Inside a block: timm has norm1, attn, norm2, mlp; we have two residual parts with norm and branch."""
    key = re.sub(r"(blocks\.\d+)\.(attn|mlp)\.", r"\1.\2.branch.", key)
    return re.sub(
        r"(blocks\.\d+)\.norm([12])\.", lambda found: f"{found[1]}.{'attn' if found[2] == '1' else 'mlp'}.norm.", key
    )


OUR_NAMES: dict[str, Callable[[str], str]] = {"resnet": _resnet_key, "deit": _deit_key, "swin": _swin_key}
"""From timm's names to ours, by family."""


def timm_weights(family: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict of timm under our names; unchanged for other families."""
    if family not in OUR_NAMES:
        return dict(weights)
    return {OUR_NAMES[family](key): tensor for key, tensor in weights.items() if not key.endswith(COMPUTED)}


_PARTS: dict[str, str | Callable[[re.Match[str]], str]] = {
    r"^(vit|swin)\.embeddings\.patch_embeddings\.projection\.": "patch_embed.proj.",
    r"^swin\.embeddings\.norm\.": "patch_embed.norm.",
    r"^vit\.embeddings\.cls_token": "cls_token",
    r"^vit\.embeddings\.position_embeddings": "pos_embed",
    r"^vit\.encoder\.layer\.": "blocks.",
    r"^swin\.encoder\.layers\.(\d+)\.downsample\.": lambda found: f"layers.{int(found[1]) + 1}.downsample.",
    r"^swin\.encoder\.": "",
    r"^(vit|swin)\.layernorm\.": "norm.",
    r"\.layernorm_before\.": ".norm1.",
    r"\.layernorm_after\.": ".norm2.",
    r"\.attention\.output\.dense\.": ".attn.proj.",
    r"\.attention\.self\.relative_position_bias_table": ".attn.relative_position_bias_table",
    r"\.attention\.(self|attention)\.": ".attn.",
    r"\.intermediate\.dense\.": ".mlp.fc1.",
    r"\.output\.dense\.": ".mlp.fc2.",
    r"^resnet\.embedder\.embedder\.convolution\.": "conv1.",
    r"^resnet\.embedder\.embedder\.normalization\.": "bn1.",
    r"^resnet\.encoder\.stages\.(\d+)\.layers\.": lambda found: f"layer{int(found[1]) + 1}.",
    r"\.shortcut\.convolution\.": ".downsample.0.",
    r"\.shortcut\.normalization\.": ".downsample.1.",
    r"\.layer\.(\d+)\.convolution\.": lambda found: f".conv{int(found[1]) + 1}.",
    r"\.layer\.(\d+)\.normalization\.": lambda found: f".bn{int(found[1]) + 1}.",
    r"^classifier\.(1\.)?": "head.",
}
"""From transformers' names of ViT, Swin and ResNet to timm's."""


def transformers_weights(family: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict of transformers' ViT, Swin or ResNet under our names. Query, key and value become one tensor."""
    renamed: dict[str, Tensor] = {}
    for key, tensor in weights.items():
        for pattern, new in _PARTS.items():
            key = re.sub(pattern, new, key)  # noqa: PLW2901
        renamed[key] = tensor
    for key in [key for key in renamed if ".attn.query." in key]:
        parts = [renamed.pop(key.replace(".query.", f".{part}."), None) for part in ("query", "key", "value")]
        if all(part is not None for part in parts):
            renamed[key.replace(".query.", ".qkv.")] = torch.cat([part for part in parts if part is not None])
    return timm_weights(family, renamed)
