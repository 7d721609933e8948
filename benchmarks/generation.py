"""How much the key/value cache brings: tokens a second from 448 to 512 tokens, batch 1, with and without it, side by side.

    python benchmarks/generation.py [--model steps_transformer_30m] [--rounds 7] [--json]

Both ways compute the last position's logits only and choose the same tokens; without a cache every token is a pass over all before it.
The two alternate, and the figure is the median over the rounds. The cache is expected to bring 5 times the speed or more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from itertools import islice

import torch

from stepsnet.models import create_model
from stepsnet.models.language import Transformer
from stepsnet.tasks.generation import generate_tokens
from stepsnet.tasks.sampling import Sampling

PROMPT, TOTAL = 448, 512
WANTED = 5.0


@torch.inference_mode()
def with_cache(model: Transformer, prompt: list[int]) -> tuple[list[int], float]:
    """The prompt is read before the clock starts, as it was before the 449th token."""
    stream = generate_tokens(model, [prompt], Sampling(temperature=0))
    tokens = [next(stream)[0]]
    started = time.perf_counter()
    tokens += [chosen[0] for chosen in islice(stream, TOTAL - PROMPT - 1)]
    return tokens, time.perf_counter() - started


@torch.inference_mode()
def without_cache(model: Transformer, prompt: list[int]) -> tuple[list[int], float]:
    def following(ids: list[int]) -> int:
        return int(model.forward_head(model.forward_features(torch.tensor([ids]))[:, -1]).argmax())

    ids = [*prompt, following(prompt)]
    started = time.perf_counter()
    while len(ids) < TOTAL:
        ids.append(following(ids))
    return ids[PROMPT:], time.perf_counter() - started


def measure(name: str, rounds: int) -> dict[str, float | str | int]:
    torch.manual_seed(0)
    model = create_model(name).eval()
    assert isinstance(model, Transformer)
    prompt = torch.randint(0, model.vocab_size, (PROMPT,)).tolist()
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(rounds):
        cached, took = with_cache(model, prompt)
        seconds["with"].append(took)
        full, took = without_cache(model, prompt)
        seconds["without"].append(took)
        assert cached == full, "the cache changed the text"
    count = TOTAL - PROMPT - 1
    ratios = [slow / fast for slow, fast in zip(seconds["without"], seconds["with"], strict=True)]
    return {
        "model": name,
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "tokens_per_second_with_cache": count / statistics.median(seconds["with"]),
        "tokens_per_second_without": count / statistics.median(seconds["without"]),
        "ratio": statistics.median(ratios),
        "lowest_ratio": min(ratios),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="steps_transformer_30m")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found = measure(arguments.model, arguments.rounds)
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        print(
            f"{found['model']}, {PROMPT} to {TOTAL} tokens, batch 1, {found['threads']} thread(s), median of {found['rounds']} rounds:\n"
            f"  with cache    {found['tokens_per_second_with_cache']:8.1f} tokens/s\n"
            f"  without       {found['tokens_per_second_without']:8.1f} tokens/s\n"
            f"  the cache brings {found['ratio']:.1f} × (lowest {found['lowest_ratio']:.1f} ×, wanted {WANTED:.0f} ×)"
        )
    raise SystemExit(0 if float(found["ratio"]) >= WANTED else 1)


if __name__ == "__main__":
    main()
