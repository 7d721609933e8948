"""Drawing on images: boxes with names and scores, masks, classes of pixels; and a page of many images."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepsnet.optional import require

# Twelve hues that most readers can distinguish (after Paul Tol), used in turn.
COLOURS = (
    (238, 119, 51), (0, 119, 187), (51, 187, 238), (238, 51, 119), (204, 51, 17), (0, 153, 136),
    (221, 170, 51), (153, 112, 171), (90, 174, 97), (118, 42, 131), (27, 120, 55), (187, 187, 187),
)  # fmt: skip
OPACITY = 0.45
THUMBNAIL = 224
GALLERY = """<style>
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(180px, 1fr)); gap: 16px; }
.gallery figure { margin: 0; } .gallery img { width: 100%; height: 180px; object-fit: contain; }
.gallery figcaption { overflow-wrap: anywhere; } .gallery figcaption span { display: block; }
</style>"""


def colour(number: int) -> tuple[int, int, int]:
    """The colour of class or object `number`."""
    return COLOURS[number % len(COLOURS)]


def paint(image: Any, mask: NDArray[np.bool_], tint: tuple[int, int, int]) -> Any:
    """A Pillow image with the pixels of `mask` tinted."""
    pixels = np.array(image, dtype=np.float32)
    pixels[mask] = (1 - OPACITY) * pixels[mask] + OPACITY * np.array(tint, dtype=np.float32)
    return require("PIL.Image", extra="vision").fromarray(pixels.astype(np.uint8))


def draw_objects(image: Any, objects: Sequence[Any]) -> Any:
    """A copy of a Pillow image with objects drawn, the best on top; each has name, number, score, box and mask.

    If all objects are of one class, each gets its own colour.
    """
    one_class = len({found.number for found in objects}) <= 1
    tints = [colour(index if one_class else found.number) for index, found in enumerate(objects)]
    for found, tint in reversed(list(zip(objects, tints, strict=True))):
        if found.mask is not None:
            image = paint(image, found.mask, tint)
    image = image.copy()
    draw = require("PIL.ImageDraw", extra="vision").Draw(image)
    small = min(image.size) < 400  # names would cover the image
    for found, tint in reversed(list(zip(objects, tints, strict=True))):
        x, y, width, height = found.box
        draw.rectangle((x, y, x + width, y + height), outline=tint, width=1 if small else 2)
        text = f"{found.score:.2f}" if small and one_class else f"{found.name} {found.score:.2f}"
        if not (small and len(objects) > 12):
            left, top, right, bottom = draw.textbbox((x + 1, max(y - 11, 0)), text)
            draw.rectangle((left - 1, top - 1, right + 1, bottom + 1), fill=tint)
            draw.text((x + 1, max(y - 11, 0)), text, fill="black")
    return image


def draw_classes(image: Any, labels: NDArray[np.uint8], names: Sequence[str]) -> Any:
    """A copy of a Pillow image with every pixel tinted by its class, and the names of the classes that occur."""
    present = [int(number) for number in np.unique(labels)]
    for number in present:
        image = paint(image, labels == number, colour(number))
    draw = require("PIL.ImageDraw", extra="vision").Draw(image)
    for row, number in enumerate(present):
        place = (3, 3 + 12 * row)
        draw.rectangle(draw.textbbox(place, names[number]), fill=colour(number))
        draw.text(place, names[number], fill="black")
    return image


def thumbnail(image: Any) -> str:
    """A small copy of a Pillow image as a data URI."""
    small, content = image.convert("RGB"), io.BytesIO()
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    small.save(content, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"


def gallery(cards: Sequence[tuple[str, str, Sequence[str]]]) -> str:
    """Images side by side, each as (thumbnail, name, lines below it)."""
    shown = []
    for uri, name, lines in cards:
        below = "".join(f"<span>{escape(line)}</span>" for line in lines)
        figcaption = f"<figcaption><b>{escape(name)}</b>{below}</figcaption>"
        shown.append(f'<figure><img src="{uri}" alt="{escape(name)}" loading="lazy">{figcaption}</figure>')
    return f'{GALLERY}\n<div class="gallery">\n' + "\n".join(shown) + "\n</div>"
