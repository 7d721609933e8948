"""`stepsnet train RECIPE key=value …`."""

from __future__ import annotations

import argparse
from typing import Any

from stepsnet.train.recipes import RECIPES, explain

SUMMARY = "train a model by a recipe, on one process or many"


def list_recipes() -> str:
    """One line a recipe: its name and the first sentence about it."""
    return "\n".join(f"  {name:<17}{explain(name).partition('. ')[0].partition(chr(10))[0].rstrip('.')}" for name in RECIPES)


DESCRIPTION = f"""\
Trains a model. A recipe names data, model and settings; key=value changes any of them. Everything about the run is kept in
its folder (out), and Ctrl-C saves before it leaves.

Recipes:
{list_recipes()}

Common keys: model plan join seed iters|epochs batch_size lr out workers parallel data.root checkpoint.every.
--dry-run shows all keys with their values.

  stepsnet train digits
  stepsnet train digits model=deit_tiny plan=3 join=matched epochs=5 out=runs/first
  stepsnet train cifar10 data.root=cifar10.npz model=steps_resnet18 --dry-run
  torchrun --nproc-per-node 8 -m stepsnet train imagenet_deit data.root=DIR model=steps_deit_small parallel=ddp"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", help="one of the recipes above; without it they are listed")
    parser.add_argument("words", nargs="*", metavar="key=value", help="a setting to change, as often as you like")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    parser.add_argument("--json", action="store_true", help="print one object instead of sentences")


def run(args: argparse.Namespace) -> int:
    from stepsnet.cli.console import print_json

    if args.recipe is None:
        if args.json:
            print_json({name: explain(name) for name in RECIPES})
        else:
            print(f"Recipes (stepsnet train RECIPE key=value …):\n{list_recipes()}")
        return 0
    from stepsnet.cli.watching import carry_out
    from stepsnet.train.build import preview
    from stepsnet.train.config import customise
    from stepsnet.train.recipes import get_recipe
    from stepsnet.train.trainer import train

    config = customise(get_recipe(args.recipe), args.words)
    if args.dry_run:
        found = preview(config)
        print_json(found) if args.json else _print_preview(found)
        return 0
    return carry_out(lambda watchers: train(config, watchers), json=args.json)


def _print_preview(found: dict[str, Any]) -> None:
    from stepsnet.cli.numbers import million
    from stepsnet.train.typed import flat

    model, steps = found["model"], found["steps"]
    print("\n".join(f"{key} = {value}" for key, value in flat(found["config"]).items()))
    print(
        f"\nmodel   {model['name']}, plan {model['plan']}: {model['blocks']} blocks, {model['layers']} layers, "
        f"{million(model['params'])} parameters, {million(model['macs'])} MACs an input"
    )
    print("data    " + ", ".join(f"{key} {value}" for key, value in found["data"].items()))
    print(f"steps   {steps['total']:,} in all, {steps['per_epoch']:,} an epoch; learning rate at its peak {steps['peak_lr']:.3g}")
