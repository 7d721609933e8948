"""`stepsnet predict RUN IMAGES…`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepsnet.train.predictor import Predictor

SUMMARY = "annotate pictures with what a trained detector or segmenter finds in them"
DESCRIPTION = """\
Annotates pictures: boxes, masks, names and scores by a run of detection, classes of pixels by one of segmentation. For every picture
the folder --out gets an annotated copy, and all results together are in predictions.json there. A picture that cannot be read is
named and left out.

  stepsnet predict runs/nuclei picture.png another.jpg
  stepsnet predict runs/nuclei FOLDER --out annotated --score 0.5
  stepsnet predict runs/pets FOLDER --json

A segmenter also writes NAME_classes.png, one byte a pixel: the number of its class."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the folder of a finished run")
    parser.add_argument("images", nargs="+", help="pictures, or folders of pictures")
    parser.add_argument("--out", default="predictions", help="where the results go (default: predictions)")
    parser.add_argument("--score", type=float, default=0.3, help="leave out objects with a smaller score (default: 0.3)")
    parser.add_argument("--ema", action="store_true", help="use the averaged weights")
    parser.add_argument("--json", action="store_true", help="print predictions.json as well")


def run(args: argparse.Namespace) -> int:
    import json
    import sys

    from stepsnet.cli.console import print_json, progress
    from stepsnet.cli.watching import existing_run
    from stepsnet.data.images.datasets import FileSource, UnreadablePictureError
    from stepsnet.errors import UsageError
    from stepsnet.train.predictor import Predictor

    if not 0 <= args.score <= 1:
        raise UsageError(f"--score is {args.score}, but lies between 0 and 1.")
    paths = pictures_of(args.images)
    predictor = Predictor(existing_run(args.run), ema=args.ema)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    source = FileSource(Path(), [(str(path.resolve()), 0) for path in paths])
    results: list[dict[str, Any]] = []
    unreadable = 0
    with progress("annotating", len(paths), "pictures") as bar:
        for index, (path, stem) in enumerate(zip(paths, unique_stems(paths), strict=True)):
            try:
                image = source.read(index)
            except UnreadablePictureError as reason:
                unreadable += 1
                print(f"left out an unreadable picture: {reason}", file=sys.stderr)
            else:
                size = {"file": str(path), "width": image.width, "height": image.height}
                results.append(size | annotate(predictor, image, out, stem, args.score))
            bar.advance()
    document = {"run": args.run, "classes": list(predictor.classes), "unreadable": unreadable, "pictures": results}
    (out / "predictions.json").write_text(json.dumps(document, ensure_ascii=False) + "\n", encoding="utf-8")
    if args.json:
        print_json(document)
    else:
        objects = sum(len(result.get("objects", ())) for result in results)
        found = f", {objects} objects of score {args.score:g} or more" if predictor.kind == "detection" else ""
        print(f"{len(results)} pictures{found}; see {out}" + (f" ({unreadable} could not be read)" if unreadable else ""))
    return 0 if results else 1


def annotate(predictor: Predictor, image: Any, out: Path, stem: str, score: float) -> dict[str, Any]:
    """Write the annotated picture and return what is in it."""
    from stepsnet.optional import require
    from stepsnet.report.annotate import draw_classes, draw_objects

    annotated = out / f"{stem}.png"
    if predictor.kind == "detection":
        objects = predictor.detect(image, score)
        draw_objects(image, objects).save(annotated)
        return {"annotated": annotated.name, "objects": [found.to_json() for found in objects]}
    labels = predictor.segment(image)
    draw_classes(image, labels, predictor.classes).save(annotated)
    require("PIL.Image", extra="vision").fromarray(labels).save(out / f"{stem}_classes.png")
    shares = {name: float((labels == number).mean()) for number, name in enumerate(predictor.classes)}
    return {"annotated": annotated.name, "mask": f"{stem}_classes.png", "shares": {name: round(s, 4) for name, s in shares.items() if s}}


def pictures_of(given: list[str]) -> list[Path]:
    """The pictures named, those in named folders included, in order."""
    from stepsnet.data.images.folders import SUFFIXES
    from stepsnet.errors import UsageError

    found: list[Path] = []
    for path in map(Path, given):
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES and not file.name.startswith("."))
            if not inside:
                raise UsageError(f"{path} has no pictures ({', '.join(SUFFIXES)}).")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise UsageError(f"there is neither a picture nor a folder {path}.")
    return found


def unique_stems(paths: list[Path]) -> list[str]:
    """A name for each result: the picture's, numbered where two pictures share it."""
    stems: list[str] = []
    for path in paths:
        repeated = sum(earlier.stem == path.stem for earlier in paths[: len(stems)])
        stems.append(f"{path.stem}_{repeated + 1}" if repeated else path.stem)
    return stems
