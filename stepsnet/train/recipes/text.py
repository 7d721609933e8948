"""Recipes for language models."""

from __future__ import annotations

from stepsnet.data.config import DataConfig
from stepsnet.train.config import EvalConfig, OptimConfig, ScheduleConfig, TrainConfig

_ADAMW = OptimConfig(name="adamw", weight_decay=0.1, betas=(0.9, 0.95), clip=1.0)


def python_docs() -> TrainConfig:
    """A small byte-level language model without a download: Python's own documentation, about 2 MB.

        stepsnet train python_docs
        stepsnet train python_docs plan=none

    Data: docstrings of the standard library and the pages of `help()`, split by module and topic without overlap. The
    text depends on the version of Python: compare within one version only.
    The model is the paper's language model, 128 wide instead of 384: three steps, or with plan=none the residual
    network of equal cost.
    Time: 1000 steps of 4096 bytes, minutes on 2 cores.
    Expected: bits per byte; compare with plan=none under the same recipe.
    """
    return TrainConfig(
        task="language",
        model="transformer_30m",
        plan="64x6, 88x3, 128x3",
        model_args={"embed_dim": 128},
        iters=1000,
        batch_size=32,
        lr=2e-3,
        data=DataConfig(kind="python_docs", seq_len=128),
        optim=_ADAMW,
        schedule=ScheduleConfig(kind="cosine", warmup_iters=100, end=0.1),
        eval=EvalConfig(every=250),
    )


def gutenberg() -> TrainConfig:
    """A small byte-level language model on English books. Residual, Steps and matched Steps have equal cost.

        stepsnet train gutenberg data.root=FOLDER
        stepsnet train gutenberg data.root=FOLDER join=matched_grad
        stepsnet train gutenberg data.root=FOLDER plan=64x48 model_args.embed_dim=64
        stepsnet prepare-text FOLDER/gutenberg_train.txt.xz FOLDER/gutenberg_valid.txt.xz --out tokens --vocab 8000 \\
            --leave-out gutenberg_valid.txt.xz:0-438856
        stepsnet train gutenberg data.kind=tokens data.root=tokens

    Data: `gutenberg_{train,valid,test}.txt.xz`, 130 + 5 + 5 books. Validation leaves out the characters that are also
    in train, and takes 1024 windows spread over the rest (data.valid_windows=0: all; data.stride=32: sliding).
    data.valid=test measures on test.
    Model: 48 blocks in seven steps, 2.4 M parameters. The third command is the residual network of the same depth and
    cost (parameters without embedding within 1 %, MACs within 4 %). The last two use a BPE instead of bytes.
    Time: 400 steps of 4096 bytes, about 10 minutes on one core.
    Expected: see docs/results/studies/short.md.
    """
    return TrainConfig(
        task="language",
        model="transformer_30m",
        plan="16x12, 24x6, 32x6, 48x6, 64x6, 90x6, 128x6",
        model_args={"embed_dim": 128},
        iters=400,
        batch_size=32,
        lr=2e-3,
        data=DataConfig(kind="gutenberg", seq_len=128, valid_windows=1024),
        optim=_ADAMW,
        schedule=ScheduleConfig(kind="cosine", warmup_iters=40, end=0.1),
        eval=EvalConfig(every=0, batch_size=64),
    )


def language() -> TrainConfig:
    """A byte-level language model on your own text files. Sequence length and batch (0.128 M tokens) are the paper's.

        stepsnet train language data.root=train.txt.xz data.valid=valid.txt.xz
        stepsnet train language data.root=FOLDER data.pattern='**/*.md' batch_size=64 model_args.embed_dim=192 plan=3

    Data: a text file or a folder of text files, plain, `.gz` or `.xz`; large plain files stay on disk. Without
    data.valid, the last tenth is the validation set. Baseline: model=transformer_30m.
    Time: 10,000 steps of 128,000 bytes, for a GPU. Not run here.
    Expected: bits per byte. They do not compare with the paper's perplexities, which are per word of a 50,000-word
    vocabulary.
    """
    return TrainConfig(
        task="language",
        model="steps_transformer_30m",
        iters=10_000,
        batch_size=1000,
        lr=1e-3,
        data=DataConfig(kind="text", seq_len=128),
        optim=_ADAMW,
        schedule=ScheduleConfig(kind="cosine", warmup_iters=500, end=0.1),
        eval=EvalConfig(every=1000),
    )


def wikitext103() -> TrainConfig:
    """The paper's Table 4: language models of 30, 44 and 63 M parameters on WikiText-103.

        stepsnet prepare-text wiki.train.raw wiki.valid.raw wiki.test.raw --vocab 50000 --out wikitext103
        stepsnet prepare-text Salesforce/wikitext --vocab 50000 --out wikitext103
        stepsnet train wikitext103 data.root=wikitext103
        stepsnet train wikitext103 data.root=wikitext103 model=transformer_30m

    The second command downloads the text from the Hub instead of reading the raw files.
    Settings: sequences of 128, 0.128 M tokens per batch, 50,000 tokens in the vocabulary.
    Models: transformer_30m, transformer_44m, transformer_63m, and steps_transformer_… of each; the last command is a
    baseline.
    Data: the output of `stepsnet prepare-text`. Validation uses its part "valid" (data.valid=test: the test part);
    data.stride=64 slides the window.
    Time: 20 epochs, about 19,000 steps of 128,000 tokens, for a GPU. Not run here.
    Expected: the paper reports perplexities of 24.39, 24.00 and 21.64 for the Steps models against 25.28, 24.45 and
    22.05. It does not say how its 50,000 tokens were made, nor whether perplexity is per token or per word. We report
    both; they do not compare with each other.
    """
    return TrainConfig(
        task="language",
        model="steps_transformer_30m",
        epochs=20,
        batch_size=1000,
        lr=1e-3,
        data=DataConfig(kind="tokens", seq_len=128),
        optim=_ADAMW,
        schedule=ScheduleConfig(kind="cosine", warmup_iters=500, end=0.1),
    )
