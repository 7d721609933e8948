"""Whoever watches a run: called by the loop in the first process, and free to look at everything in the run's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from stepsnet.data.text.tokens import TOKENIZER
from stepsnet.data.text.vocabulary import BpeVocabulary
from stepsnet.errors import UsageError
from stepsnet.files import replace_file
from stepsnet.runs.folder import EVALUATIONS, METRICS, StepLines

if TYPE_CHECKING:
    from stepsnet.train.loop import TrainState


class Watcher(Protocol):
    """What the loop calls; `Callback` says when. Anything with these methods will do: watchers need not know this package."""

    def on_start(self, state: TrainState, /) -> None: ...

    def on_step(self, state: TrainState, step: int, metrics: Mapping[str, Any], /) -> None: ...

    def on_evaluate(self, state: TrainState, step: int, metrics: Mapping[str, float], /) -> None: ...

    def on_checkpoint(self, state: TrainState, step: int, /) -> None: ...

    def on_end(self, state: TrainState, /) -> None: ...

    def close(self) -> None: ...


class Callback:
    """Does nothing at every occasion; override those of interest. Changing the model's weights is not allowed."""

    def on_start(self, state: TrainState) -> None:
        """Before the first step, or the first one after a resume."""

    def on_step(self, state: TrainState, step: int, metrics: Mapping[str, Any]) -> None:
        """After each update; the last one of the run is step `state.total_steps`."""

    def on_evaluate(self, state: TrainState, step: int, metrics: Mapping[str, float]) -> None:
        """After each evaluation."""

    def on_checkpoint(self, state: TrainState, step: int) -> None:
        """Before a checkpoint is written: what belongs to the steps so far should reach the disk first."""

    def on_end(self, state: TrainState) -> None:
        """After the last step has been evaluated and the run's results are written. Not called when the run is interrupted."""

    def close(self) -> None:
        """However the run ended, the last call."""


class StepRecorder(Callback):
    """Writes metrics.jsonl and eval.jsonl."""

    def on_start(self, state: TrainState) -> None:
        self._metrics = StepLines(state.out / METRICS, keep_until=state.step)
        self._evaluations = StepLines(state.out / EVALUATIONS, keep_until=state.step)

    def on_step(self, state: TrainState, step: int, metrics: Mapping[str, Any]) -> None:  # noqa: ARG002
        self._metrics.append({"step": step, **metrics})

    def on_evaluate(self, state: TrainState, step: int, metrics: Mapping[str, float]) -> None:  # noqa: ARG002
        self._evaluations.append({"step": step, **metrics})

    def on_checkpoint(self, state: TrainState, step: int) -> None:  # noqa: ARG002
        self._metrics.sync()
        self._evaluations.sync()

    def close(self) -> None:
        for lines in (getattr(self, "_metrics", None), getattr(self, "_evaluations", None)):
            if lines is not None:
                lines.close()


class TokenizerKeeper(Callback):
    """Puts the tokenizer of a language run beside its weights, so that the folder is all it takes to generate text."""

    def on_start(self, state: TrainState) -> None:
        vocabulary = getattr(state.task, "vocabulary", None)
        kept = state.out / TOKENIZER
        if not isinstance(vocabulary, BpeVocabulary):
            return
        if kept.is_file() and BpeVocabulary.load(kept).identity != vocabulary.identity:
            raise UsageError(f"{state.out} was started with another tokenizer than its data has now; give it the data it had.")
        replace_file(kept, vocabulary.content.encode())


class TensorBoard(Callback):
    """Writes the same numbers for TensorBoard, which must be installed."""

    def on_start(self, state: TrainState) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(state.out / "tensorboard"), purge_step=state.step + 1)

    def on_step(self, state: TrainState, step: int, metrics: Mapping[str, Any]) -> None:  # noqa: ARG002
        self._write("train", step, metrics)

    def on_evaluate(self, state: TrainState, step: int, metrics: Mapping[str, float]) -> None:  # noqa: ARG002
        self._write("valid", step, metrics)

    def _write(self, part: str, step: int, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            if isinstance(value, (int, float)):
                self._writer.add_scalar(f"{part}/{name}", value, step)

    def close(self) -> None:
        if hasattr(self, "_writer"):
            self._writer.close()
