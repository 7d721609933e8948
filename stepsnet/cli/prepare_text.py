"""`stepsnet prepare-text FILES…`."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from stepsnet.cli.console import print_json, print_text, progress, say
from stepsnet.cli.options import count, refuse
from stepsnet.units import counted

if TYPE_CHECKING:
    from stepsnet.data.text.sources import Source

VOCABULARY, LARGEST_VOCABULARY, SAMPLE_MB, COLUMN = 50_000, 1 << 20, 32, "text"
SUMMARY = "turn text of any size into a tokenizer and memory-mapped token files"
DESCRIPTION = """\
Trains a byte-level BPE tokenizer on a sample of the text and encodes all of the text in parallel. Writes train.bin,
valid.bin, test.bin, tokenizer.json and manifest.json (counts, hashes) to a folder. `stepsnet train wikitext103
data.root=FOLDER` reads this folder. Memory does not grow with the text. After an interruption the same command
continues.

FILES are text files, plain or compressed (.xz, .gz, .zst), folders of them, data sets saved by the `datasets`
library, or names on its hub. The name of a file decides its split. A name with the separate word valid, validation, val
or dev is validation (wiki.valid.raw). A name with the word test is test (books_test.txt.xz). Any other is training.

  stepsnet prepare-text wiki.train.raw wiki.valid.raw wiki.test.raw --vocab 50000 --out wikitext103
  stepsnet prepare-text Salesforce/wikitext --vocab 50000 --out wikitext103
  stepsnet prepare-text books/*.txt.xz --valid other/book.txt --vocab 8000 --out tokens --errors replace"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="FILES", help="files, folders, or NAME[:CONFIG] of a data set")
    add("--out", type=Path, required=True, help="the folder to write")
    size = count(least=257, most=LARGEST_VOCABULARY)  # 256 bytes and a separator
    add("--vocab", type=size, help=f"size of the vocabulary (default: {VOCABULARY})")
    add("--tokenizer", type=Path, help="use this tokenizer.json instead of training one")
    add("--valid", nargs="+", default=[], metavar="FILE", help="validation text, whatever its name")
    add("--test", nargs="+", default=[], metavar="FILE", help="test text, whatever its name")
    damage = "strict (default): stop at bytes that are not UTF-8 or at a damaged archive. replace: write U+FFFD for "
    damage += "such bytes; of a damaged archive, keep only the text before the damage"
    add("--errors", metavar="strict|replace", help=damage)
    skipped = "characters of a file to leave out"
    add("--leave-out", action="append", default=[], metavar="FILE:START-STOP", help=skipped)
    add("--column", help=f"the column of a data set that holds the text (default: {COLUMN})")
    add("--sample-mb", type=count(), help=f"how much text the tokenizer is trained on (default: {SAMPLE_MB} MB)")
    processes = "encoding processes (default: one per core)"
    add("--workers", type=count(most=1024), default=os.cpu_count() or 1, help=processes)
    add("--json", action="store_true", help="print the manifest")


def run(args: argparse.Namespace) -> int:
    from stepsnet.data.text.prepare import Request, prepare
    from stepsnet.data.text.sources import find_sources

    if args.tokenizer is not None:
        refuse(args, "vocab", "sample-mb", because=f"is for training a tokenizer; {args.tokenizer} is trained")
    vocabulary = VOCABULARY if args.vocab is None else args.vocab
    sample_mb = SAMPLE_MB if args.sample_mb is None else args.sample_mb
    column = args.column or COLUMN
    sources = find_sources(
        args.files, valid=args.valid, test=args.test, left_out=args.leave_out, column=column, out=args.out
    )
    _refuse_options_of_other_sources(args, sources)
    request = Request(
        out=args.out, sources=sources, vocabulary=vocabulary, tokenizer=args.tokenizer,
        sample_mb=sample_mb, errors=args.errors or "strict", workers=args.workers,
    )  # fmt: skip
    manifest = prepare(request, lambda description, total: progress(description, total, "bytes"))
    for part in manifest.parts.values():
        for sentence in part.damage:
            say(sentence)
    if args.json:
        print_json(asdict(manifest))
        return 0
    if manifest.vocabulary < vocabulary and args.tokenizer is None:
        print_text(f"The text is too small for {vocabulary} tokens: the vocabulary has {manifest.vocabulary}.")
    for name, part in manifest.parts.items():
        text = f"{part.bytes:,} bytes, {counted(part.words, 'word')}, {counted(part.documents, 'document')}"
        print_text(f"{name}: {part.tokens:,} tokens of {text} in {args.out / part.file}")
    return 0


def _refuse_options_of_other_sources(args: argparse.Namespace, sources: list[Source]) -> None:
    from stepsnet.data.text.sources import TextFile

    files = [isinstance(source, TextFile) for source in sources]
    if all(files):
        refuse(args, "column", because="is for data sets; these are files of text, which have no columns")
    if not any(files):
        refuse(args, "errors", because="is for files; the text of a data set is decoded already")
