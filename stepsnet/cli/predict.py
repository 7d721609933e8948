"""`stepsnet predict [RUN] IMAGES…`."""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from stepsnet.cli.console import print_json, print_table, print_text, progress, say
from stepsnet.cli.options import check_folder, count, refuse
from stepsnet.cli.resolve import find_run
from stepsnet.errors import UsageError
from stepsnet.report.table import Column, Table
from stepsnet.runs.folder import SHIPPED, is_run
from stepsnet.units import counted

if TYPE_CHECKING:
    from stepsnet.train.predictor import Predictor

SUMMARY = "apply a trained classifier, detector or segmenter to images"
DESCRIPTION = """\
Applies a run to images. A classifier names each image: the most probable classes with their probabilities. A detector
draws boxes, masks, names and scores, a segmenter the class of each pixel, on a copy of the image.
Without RUN, a small classifier that comes with the package is used; it was trained on CIFAR-10.

The folder --out gets predictions.json with all results and gallery.html with all images; for a classifier also
predictions.csv, else the annotated images. An image that cannot be read is reported and skipped.

  stepsnet predict photo.png                                  airplane, cat, ship …
  stepsnet predict runs/flowers first.jpg second.jpg          a classifier
  stepsnet predict runs/flowers FOLDER --top 3 --out named
  stepsnet predict runs/nuclei FOLDER --score 0.5             a detector
  stepsnet predict runs/pets FOLDER --json                    a segmenter

A segmenter also writes NAME_classes.png, one byte per pixel: the number of its class."""

Prediction: TypeAlias = tuple[dict[str, Any], Any, list[str]]
"""The entry in predictions.json, the image for the gallery, and the lines below it."""
CIFAR = "pretrained:steps_resnet_mini"
OUT = "predictions"
SHOWN = 20
"""How many images of a classifier are listed on the terminal."""
MASK = "_classes"
"""Ends the names of the masks of a segmenter."""
LONGEST = 40
"""Characters of a file's name on the terminal; the files of results have the whole name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    images = f"images or folders of them; the first may be a run (default: {CIFAR})"
    add("words", nargs="+", metavar="IMAGES", help=images)
    place = f"the folder for the results; it must be new or empty (default: {OUT}, or the next free {OUT}-<number>)"
    add("--out", type=Path, help=place)
    add("--top", type=count(), metavar="K", help="classifiers: the number of classes per image (default: 5)")
    add("--score", type=float, help="detectors: leave out objects with a smaller score (default: 0.3)")
    add("--ema", action="store_true", help="use the averaged weights")
    add("--json", action="store_true", help="print predictions.json as well")


def run(args: argparse.Namespace) -> int:
    from stepsnet.data.images.datasets import FileSource, UnreadableImageError
    from stepsnet.report import annotate, html
    from stepsnet.train.predictor import Predictor

    args.run, images = split(args.words)
    names = itertools.chain([OUT], (f"{OUT}-{number}" for number in itertools.count(2)))
    out = args.out or next(free for free in map(Path, names) if not free.exists())
    check_folder(out)
    paths = find_images(images)
    predictor = Predictor(find_run(args.run), ema=args.ema)
    _check(args, predictor)
    out.mkdir(parents=True, exist_ok=True)
    source = FileSource(Path(), [(str(path.resolve()), 0) for path in paths])
    results: list[dict[str, Any]] = []
    cards: list[tuple[str, str, list[str]]] = []
    unreadable = 0
    with progress("predicting", len(paths), "images") as bar:
        names_of = zip(paths, unique_stems(paths), shown_names(paths), strict=True)
        for index, (path, stem, name) in enumerate(names_of):
            try:
                image = source.read(index)
            except UnreadableImageError as reason:
                unreadable += 1
                say(f"Skipped an image that cannot be read: {reason}")
            else:
                found, drawn, lines = PREDICT[predictor.kind](predictor, image, out / stem, args)
                results.append({"file": str(path), "width": image.width, "height": image.height, **found})
                cards.append((annotate.thumbnail(drawn), name, lines))
            bar.advance()
    if not results:
        out.rmdir()
        raise UsageError(f"None of the {counted(len(paths), 'file')} is an image that can be read.")
    document = {"run": args.run, "classes": list(predictor.classes), "unreadable": unreadable, "pictures": results}
    (out / "predictions.json").write_text(json.dumps(document, ensure_ascii=False) + "\n", encoding="utf-8")
    lead = f"{counted(len(results), 'image')} by {args.run}, a run of {predictor.kind}"
    html.write(out / "gallery.html", html.page("Predictions", lead, [annotate.gallery(cards)]))
    if predictor.kind == "classification":
        _write_csv(out / "predictions.csv", results)
    if args.json:
        print_json(document)
    else:
        lost = f" ({counted(unreadable, 'image')} could not be read)" if unreadable else ""
        shown = [name for _, name, _ in cards]
        print_text(f"{_print_results(predictor.kind, shown, results, args)} See {out / 'gallery.html'}{lost}.")
    return 0


def _check(args: argparse.Namespace, predictor: Predictor) -> None:
    """Refuse options of other tasks, and fill in the defaults."""
    for option, kind in (("top", "classification"), ("score", "detection")):
        if predictor.kind != kind:
            refuse(args, option, because=f"is for runs of {kind}; {args.run} is a run of {predictor.kind}")
    args.top = 5 if args.top is None else args.top
    args.score = 0.3 if args.score is None else args.score
    if not 0 <= args.score <= 1:
        raise UsageError(f"--score is {args.score}, but must be between 0 and 1.")


def _classify(predictor: Predictor, image: Any, stem: Path, args: argparse.Namespace) -> Prediction:  # noqa: ARG001
    best = predictor.classify(image, args.top)
    found = [{"class": name, "probability": round(probability, 6)} for name, probability in best]
    return {"top": found}, image, [f"{name} {probability:.1%}" for name, probability in best]


def _detect(predictor: Predictor, image: Any, stem: Path, args: argparse.Namespace) -> Prediction:
    from stepsnet.report.annotate import draw_objects

    objects = predictor.detect(image, args.score)
    drawn = draw_objects(image, objects)
    drawn.save(f"{stem}.png")
    found = {"annotated": f"{stem.name}.png", "objects": [each.to_json() for each in objects]}
    return found, drawn, [counted(len(objects), "object")]


def _segment(predictor: Predictor, image: Any, stem: Path, args: argparse.Namespace) -> Prediction:  # noqa: ARG001
    from stepsnet.optional import require
    from stepsnet.report.annotate import draw_classes

    labels = predictor.segment(image)
    drawn = draw_classes(image, labels, predictor.classes)
    drawn.save(f"{stem}.png")
    require("PIL.Image", extra="vision").fromarray(labels).save(f"{stem}{MASK}.png")
    shares = {name: float((labels == number).mean()) for number, name in enumerate(predictor.classes)}
    present = {name: round(share, 4) for name, share in shares.items() if share}
    found = {"annotated": f"{stem.name}.png", "mask": f"{stem.name}{MASK}.png", "shares": present}
    return found, drawn, [f"{name} {share:.1%}" for name, share in present.items()]


PREDICT = {"classification": _classify, "detection": _detect, "segmentation": _segment}

def _write_csv(path: Path, results: list[dict[str, Any]]) -> None:
    """One line per image and class."""
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["file", "rank", "class", "probability"])
        for result in results:
            for rank, best in enumerate(result["top"], start=1):
                lines.writerow([result["file"], rank, best["class"], best["probability"]])


def _print_results(kind: str, names: list[str], results: list[dict[str, Any]], args: argparse.Namespace) -> str:
    """Print the table of a classifier, and return how many images and objects there are."""
    if kind == "classification" and results:
        rows = []
        for name, result in zip(names[:SHOWN], results, strict=False):
            first, *others = result["top"]
            more = ", ".join(f"{other['class']} {other['probability']:.1%}" for other in others)
            short = name if len(name) <= LONGEST else f"{name[: LONGEST // 2]}…{name[-LONGEST // 2 + 1 :]}"
            rows.append([short, first["class"], f"{first['probability']:.1%}", more])
        columns = (Column("image", "name"), Column("class", "name"), "probability", Column("other classes", "text", 2))
        print_table(Table(columns, rows))
    objects = sum(len(result.get("objects", ())) for result in results)
    found = f", {counted(objects, 'object')} of score {args.score:g} or more" if kind == "detection" else ""
    listed = f", the first {SHOWN} listed above" if kind == "classification" and len(results) > SHOWN else ""
    return f"{counted(len(results), 'image')}{found}{listed}."


def split(words: list[str]) -> tuple[str, list[str]]:
    """The run and the images among the arguments; without a run it is the classifier of the package."""
    from stepsnet.data.images.readers import IMAGE_SUFFIXES

    first, *others = words
    if Path(first).suffix == ".safetensors":
        raise UsageError(f"{first} is a file of weights; give the folder of its run, which also has the class names.")
    if not first.startswith(SHIPPED) and not is_run(Path(first)) and Path(first).exists():
        return CIFAR, words
    if Path(first).suffix.lower() in IMAGE_SUFFIXES:
        raise UsageError(f"There is no image {first}.")
    if not others:
        find_run(first)
        raise UsageError(f"{first} is the run; give images, or folders of images, after it.")
    return first, others


def find_images(given: list[str]) -> list[Path]:
    """The given images, and those in given folders, in order."""
    from stepsnet.data.images.readers import IMAGE_SUFFIXES

    found: list[Path] = []
    for path in map(Path, given):
        if path.is_dir():
            visible = (file for file in path.iterdir() if not file.name.startswith("."))
            inside = sorted(file for file in visible if file.suffix.lower() in IMAGE_SUFFIXES)
            if not inside:
                raise UsageError(f"{path} has no images ({', '.join(IMAGE_SUFFIXES)}).")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise UsageError(f"There is no image or folder {path}.")
    return found


def unique_stems(paths: list[Path]) -> list[str]:
    """A name for each result: that of the image, numbered where its files would replace those of another."""
    stems: list[str] = []
    taken: set[str] = set()
    for path in paths:
        names = itertools.chain([path.stem], (f"{path.stem}_{number}" for number in itertools.count(2)))
        stem = next(name for name in names if taken.isdisjoint((name, f"{name}{MASK}")))
        taken |= {stem, f"{stem}{MASK}"}
        stems.append(stem)
    return stems


def shown_names(paths: list[Path]) -> list[str]:
    """File names, or paths below the common folder where several images share a name."""
    names = [path.name for path in paths]
    if len(set(names)) == len(names):
        return names
    full = [path.absolute() for path in paths]
    common = os.path.commonpath([path.parent for path in full])
    return [str(path.relative_to(common)) for path in full]
