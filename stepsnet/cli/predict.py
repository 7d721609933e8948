"""`stepsnet predict RUN IMAGES…`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsnet.cli.console import print_json, progress, say
from stepsnet.cli.resolve import find_run
from stepsnet.errors import UsageError

if TYPE_CHECKING:
    from stepsnet.train.predictor import Predictor

SUMMARY = "annotate images with a trained detector or segmenter"
DESCRIPTION = """\
Annotates images: boxes, masks, names and scores by a run of detection, the class of each pixel by a run of
segmentation. The folder --out gets an annotated copy of every image, and all results in predictions.json. An image
that cannot be read is reported and skipped.

  stepsnet predict runs/nuclei first.png second.jpg
  stepsnet predict runs/nuclei FOLDER --out annotated --score 0.5
  stepsnet predict runs/pets FOLDER --json

A segmenter also writes NAME_classes.png, one byte per pixel: the number of its class."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", help="the folder of a finished run")
    add("images", nargs="+", help="images, or folders of images")
    add("--out", default="predictions", help="the folder for the results (default: predictions)")
    add("--score", type=float, default=0.3, help="leave out objects with a smaller score (default: 0.3)")
    add("--ema", action="store_true", help="use the averaged weights")
    add("--json", action="store_true", help="print predictions.json as well")


def run(args: argparse.Namespace) -> int:
    from stepsnet.data.images.datasets import FileSource, UnreadableImageError
    from stepsnet.train.predictor import Predictor

    if not 0 <= args.score <= 1:
        raise UsageError(f"--score is {args.score}, but must be between 0 and 1.")
    paths = find_images(args.images)
    predictor = Predictor(find_run(args.run), ema=args.ema)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    source = FileSource(Path(), [(str(path.resolve()), 0) for path in paths])
    results: list[dict[str, Any]] = []
    unreadable = 0
    with progress("annotating", len(paths), "images") as bar:
        for index, (path, stem) in enumerate(zip(paths, unique_stems(paths), strict=True)):
            try:
                image = source.read(index)
            except UnreadableImageError as reason:
                unreadable += 1
                say(f"Skipped an image that cannot be read: {reason}")
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
        print(f"{len(results)} images{found}; see {out}" + (f" ({unreadable} could not be read)" if unreadable else ""))
    return 0 if results else 1


def annotate(predictor: Predictor, image: Any, out: Path, stem: str, score: float) -> dict[str, Any]:
    """Write the annotated image and return the predictions."""
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
    present = {name: round(share, 4) for name, share in shares.items() if share}
    return {"annotated": annotated.name, "mask": f"{stem}_classes.png", "shares": present}


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
    """A name for each result: that of the image, numbered where several images share it."""
    stems: list[str] = []
    for path in paths:
        repeated = sum(earlier.stem == path.stem for earlier in paths[: len(stems)])
        stems.append(f"{path.stem}_{repeated + 1}" if repeated else path.stem)
    return stems
