"""`stepsnet generate RUN`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

SUMMARY = "let a trained language model write on from a prompt"
DESCRIPTION = """\
Generates text with a language model that was trained here: RUN is the run's folder, or a file of weights. One prompt streams as it is
written; several run as one batch and are shown one below the other. Without a prompt, or with an empty one, the model begins a text.

The model looks back as far as it was trained to (its sequence length), however long the text gets; --context chooses another reach, and
--context 0 lets it look back at everything, which rotary positions allow and training has not prepared it for.

  stepsnet generate runs/gutenberg --prompt "It was a dark and stormy night" --tokens 400 --temperature 0.8 --top-k 50
  stepsnet generate runs/gutenberg --prompt "Dear Sir," --prompt "Chapter I" --stop "\\n\\n" --seed 7 --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run, or its weights.safetensors")
    parser.add_argument("--prompt", action="append", help="the beginning of the text; several times for a batch")
    parser.add_argument("--tokens", type=int, default=200, help="how many tokens at most (default: 200)")
    parser.add_argument("--temperature", type=float, default=1.0, help="below 1 safer, above wilder, 0: the most probable (default: 1)")
    parser.add_argument("--top-k", type=int, default=0, help="choose among this many tokens (default: 0, all)")
    parser.add_argument("--top-p", type=float, default=1.0, help="choose among the fewest tokens that hold this probability (default: 1)")
    parser.add_argument("--stop", action="append", default=[], help="end the text before this string (\\n and \\t are understood)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed writes the same text (default: 0)")
    parser.add_argument("--context", type=int, help="how many tokens to look back at (default: as trained; 0: all)")
    parser.add_argument("--ema", action="store_true", help="use the averaged weights")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json, where the run's own is not to be found")
    parser.add_argument("--json", action="store_true", help="print a list of objects: prompt, text, finished")


def run(args: argparse.Namespace) -> int:
    from stepsnet.cli.console import errors, print_json
    from stepsnet.data.text.trained import load_language_run
    from stepsnet.errors import UsageError
    from stepsnet.tasks.generation import generate
    from stepsnet.tasks.sampling import Sampling

    if args.context is not None and args.context < 0:
        raise UsageError(f"--context is {args.context}, but is a number of tokens, or 0 for all.")
    sampling = Sampling(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p)
    model, vocabulary = load_language_run(args.run, ema=args.ema, tokenizer=args.tokenizer)
    (trained,) = model.input_size
    context = trained if args.context is None else args.context or None
    prompts: list[str] = args.prompt or [""]
    for prompt in prompts:
        length = len(vocabulary.encode(prompt))
        if context is not None and length > context:
            errors.print(f"The prompt has {length} tokens; the model sees the last {context} of them (--context).")
    stops = [stop.replace("\\n", "\n").replace("\\t", "\t") for stop in args.stop]
    pieces = generate(model, vocabulary, prompts, tokens=args.tokens, sampling=sampling, stops=stops, seed=args.seed, context=context)
    if args.json or len(prompts) > 1:
        texts = _collect(prompts, pieces)
        if args.json:
            print_json(texts)
        else:
            print("\n\n".join(text["prompt"] + text["text"] for text in texts))
    else:
        print(prompts[0], end="", flush=True)
        for piece in pieces:
            print(piece.text, end="", flush=True)
        print()
    return 0


def _collect(prompts: list[str], pieces: Any) -> list[dict[str, Any]]:
    texts: list[dict[str, Any]] = [{"prompt": prompt, "text": "", "finished": None} for prompt in prompts]
    for piece in pieces:
        texts[piece.number]["text"] += piece.text
        texts[piece.number]["finished"] = piece.finished
    return texts
