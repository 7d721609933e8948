"""`stepsnet generate [RUN]`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stepsnet.cli.console import no_lines, print_json, progress, say
from stepsnet.cli.options import count, refuse, seed
from stepsnet.cli.resolve import find_run
from stepsnet.errors import UsageError

SUMMARY = "continue a prompt with a trained language model"
DESCRIPTION = """\
Generates text with a trained language model. RUN is the folder of its run, or a file of weights. Without RUN, a
small model that comes with the package is used; it was trained on English books. An argument with a space in it is a
prompt, not a RUN. One prompt is printed as it is generated; several run as one batch and are printed one below the
other. Without a prompt, or with an empty one, the model starts a new text.

The model sees as many tokens as in training (its sequence length). --context N lets it see N tokens, --context 0 all;
rotary positions allow that, but the model was not trained for it.

  stepsnet generate "The old man "
  stepsnet generate runs/gutenberg --prompt "It was a dark and stormy night" --tokens 400 --temperature 0.8 --top-k 50
  stepsnet generate runs/gutenberg --prompt "Dear Sir," --prompt "Chapter I" --stop "\\n\\n" --seed 7 --json"""

BOOKS = "pretrained:steps_transformer_mini"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", nargs="?", default=BOOKS, metavar="RUN", help=f"a run or its weights.safetensors (default: {BOOKS})")
    add("--prompt", action="append", help="the beginning of the text; several times for a batch")
    add("--tokens", type=count(), default=200, help="the most tokens to generate (default: 200)")
    add("--temperature", type=float, help="of the softmax; 0: always the most probable (default: 1)")
    add("--top-k", type=count(least=0), help="sample among this many tokens (default: 0, all)")
    words = "sample among the most probable tokens that together reach this probability (default: 1)"
    add("--top-p", type=float, help=words)
    add("--stop", action="append", default=[], help="end the text before this string (\\n and \\t are understood)")
    add("--seed", type=seed, help="the same seed gives the same text (default: 0)")
    add("--context", type=count(least=0), help="how many tokens the model sees (default: as trained; 0: all)")
    add("--ema", action="store_true", help="use the averaged weights")
    add("--tokenizer", type=Path, help="a tokenizer.json, if the run's own cannot be found")
    add("--json", action="store_true", help="print a list of objects: prompt, text, finished")


def _refuse_without_choice(args: argparse.Namespace, option: str, value: int) -> None:
    """Refuse the other options of sampling if `option` has the value that leaves nothing to sample."""
    if getattr(args, option.replace("-", "_")) == value:
        others = [other for other in ("temperature", "top-k", "top-p", "seed") if other != option]
        why = f"has no effect with --{option} {value}, which always takes the most probable token"
        refuse(args, *others, because=why)


def run(args: argparse.Namespace) -> int:
    from stepsnet.data.text.trained import load_language_run
    from stepsnet.tasks.generation import Sampling, generate

    for option, value in (("temperature", 0), ("top-k", 1)):
        _refuse_without_choice(args, option, value)
    prompts: list[str] = args.prompt or [""]
    if not args.run or (" " in args.run and not Path(args.run).exists()):
        if args.prompt:
            raise UsageError(f"There is no run {args.run!r}; if it is a prompt, put --prompt before it as well.")
        args.run, prompts = BOOKS, [args.run]
    try:
        place = Path(args.run) if Path(args.run).exists() else find_run(args.run)
    except UsageError as error:
        raise UsageError(f"{str(error).removesuffix('.')}; a prompt of one word needs --prompt.") from error
    if place.is_file():
        refuse(args, "ema", because=f"is for runs, which may keep an average of their weights; {place} is a file")
    temperature, top_p = (1.0 if value is None else value for value in (args.temperature, args.top_p))
    sampling = Sampling(temperature=temperature, top_k=args.top_k or 0, top_p=top_p)
    model, vocabulary = load_language_run(place, ema=args.ema, tokenizer=args.tokenizer)
    if sampling.top_k >= model.vocab_size:
        raise UsageError(f"--top-k {sampling.top_k} has no effect: the model has {model.vocab_size} tokens.")
    (trained,) = model.input_size
    context = trained if args.context is None else args.context or None
    for prompt in prompts:
        length = len(vocabulary.encode(prompt))
        if context is not None and length > context:
            say(f"The prompt has {length} tokens; the model sees the last {context} of them (--context).")
    stops = [stop.replace("\\n", "\n").replace("\\t", "\t") for stop in args.stop]
    pieces = generate(
        model, vocabulary, prompts, tokens=args.tokens, sampling=sampling, stops=stops, seed=args.seed or 0,
        context=context,
    )
    if args.json or len(prompts) > 1:
        texts = _collect(prompts, pieces)
        if args.json:
            print_json(texts)
        else:
            print("\n\n".join(text["prompt"] + text["text"] for text in texts))
    else:
        with no_lines():
            print(prompts[0], end="", flush=True)
            for piece in pieces:
                print(piece.text, end="", flush=True)
            print()
    return 0


def _collect(prompts: list[str], pieces: Any) -> list[dict[str, Any]]:
    texts: list[dict[str, Any]] = [{"prompt": prompt, "text": "", "finished": None} for prompt in prompts]
    with progress("generating", unit="pieces") as bar:
        for piece in pieces:
            texts[piece.number]["text"] += piece.text
            texts[piece.number]["finished"] = piece.finished
            bar.advance()
    return texts
