"""`stepsnet prepare-text FILES…`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

SUMMARY = "turn text of any size into a tokenizer and memory-mapped token files"
DESCRIPTION = """\
Trains a byte-level BPE on a sample of the text, encodes all of it in parallel, and writes train.bin, valid.bin, test.bin, tokenizer.json
and manifest.json (counts, hashes) to a folder that `stepsnet train wikitext103 data.root=FOLDER` reads. Memory does not grow with the
text. Stopped and started again with the same words, it goes on where it was.

FILES are text files, plain or packed (.xz, .gz, .zst), folders of them, data sets that the `datasets` library has saved, or names on its
hub. A name says where its text belongs: wiki.valid.raw to valid, books_test.txt.xz to test, any other to train.

  stepsnet prepare-text wiki.train.raw wiki.valid.raw wiki.test.raw --vocab 50000 --out wikitext103
  stepsnet prepare-text Salesforce/wikitext --vocab 50000 --out wikitext103
  stepsnet prepare-text books/*.txt.xz --valid other/book.txt --vocab 8000 --out tokens --errors replace"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILES", help="files, folders, or NAME[:CONFIG] of a data set")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--vocab", type=int, default=50_000, help="how many tokens (default: 50000)")
    parser.add_argument("--tokenizer", type=Path, help="use this tokenizer.json instead of training one")
    parser.add_argument("--valid", nargs="+", default=[], metavar="FILE", help="text for validation, whatever its name")
    parser.add_argument("--test", nargs="+", default=[], metavar="FILE", help="text for testing, whatever its name")
    damage = "bytes that are not UTF-8, and damaged archives: stop (default), or put U+FFFD and keep what comes before the damage"
    parser.add_argument("--errors", default="strict", metavar="strict|replace", help=damage)
    parser.add_argument("--leave-out", action="append", default=[], metavar="FILE:START-STOP", help="characters of a file to do without")
    parser.add_argument("--column", default="text", help="the column of a data set that holds the text (default: text)")
    parser.add_argument("--sample-mb", type=int, default=32, help="how much text the tokenizer is trained on (default: 32 MB)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that encode (default: one a core)")
    parser.add_argument("--json", action="store_true", help="print the manifest")


def run(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from stepsnet.cli.console import errors, print_json, progress
    from stepsnet.data.text.prepare import Request, prepare
    from stepsnet.data.text.sources import find_sources

    sources = find_sources(args.files, valid=args.valid, test=args.test, left_out=args.leave_out, column=args.column)
    request = Request(
        out=args.out, sources=sources, vocabulary=args.vocab, tokenizer=args.tokenizer,
        sample_mb=args.sample_mb, errors=args.errors, workers=args.workers,
    )  # fmt: skip
    manifest = prepare(request, lambda description, total: progress(description, total, "bytes"))
    for part in manifest.parts.values():
        for sentence in part.damage:
            errors.print(sentence)
    if args.json:
        print_json(asdict(manifest))
        return 0
    if manifest.vocabulary < args.vocab and args.tokenizer is None:
        print(f"The text is too small for {args.vocab} tokens: the vocabulary has {manifest.vocabulary}.")
    for name, part in manifest.parts.items():
        text = f"{part.bytes:,} bytes, {part.words:,} words, {part.documents:,} documents"
        print(f"{name}: {part.tokens:,} tokens of {text} in {args.out / part.file}")
    return 0
