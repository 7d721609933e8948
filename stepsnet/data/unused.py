"""Keys of the data that have no effect on the files that were found."""

from __future__ import annotations

from pathlib import Path

from stepsnet.data.config import DataConfig


def unused_keys(config: DataConfig) -> dict[str, str]:
    """The `data.*` keys that the files of the data leave without an effect, and why."""
    if not config.root or not Path(config.root).expanduser().exists():
        return {}  # the reader says what is missing
    if config.kind == "image_folder":
        from stepsnet.data.images.readers import image_folders

        _, valid = image_folders(config)
        return {} if valid is None else _no_split(f"in {valid}")
    if config.kind == "mask_folder":
        from stepsnet.data.dense.masks import mask_places

        places = mask_places(config)
        return {} if places is None else _no_split(f"in {places[1]}")
    return _of_text(config) if config.kind in ("text", "tokens") else {}


def _of_text(config: DataConfig) -> dict[str, str]:
    from stepsnet.data.text.tokens import is_prepared, read_manifest, valid_part

    root = Path(config.root).expanduser()
    if config.kind == "tokens" or is_prepared(root):
        part = valid_part(config, read_manifest(root))
        files = f"{config.root} is a prepared text, not a folder of text files"
        return (_no_split(f"the part {part!r} of {config.root}") if part else {}) | _no_folder(files)
    split = _no_split(f"in {config.valid}") if config.valid else {}
    folders = [name for name in (config.root, config.valid) if name and Path(name).expanduser().is_dir()]
    return split | ({} if folders else _no_folder(f"{config.root} is one file, not a folder"))


def _no_split(where: str) -> dict[str, str]:
    return {"data.valid_fraction": f"because the validation data are {where}, not split from those for training"}


def _no_folder(why: str) -> dict[str, str]:
    return {"data.pattern": f"because {why}", "data.strict": f"because {why}"}
