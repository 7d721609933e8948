"""One cell, in a process of its own: `python -m stepsnet.research.studies.cell` with its job as one line of JSON on standard input.

It ends, saved, when it is asked to or when whoever started it is no more, which it sees by the end of its standard input.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

WAIT_SECONDS = 1.0


def main() -> int:
    """Train what the job describes, on from where it was; 0 once it is finished, 128 + signal if it was stopped."""
    job: dict[str, Any] = json.loads(sys.stdin.readline())
    threading.Thread(target=_leave_with_the_parent, daemon=True).start()
    import torch

    from stepsnet.analysis import GammaRecorder
    from stepsnet.errors import RunFailed, UsageError
    from stepsnet.research.studies.probes import probe
    from stepsnet.runs.folder import is_being_trained, is_run
    from stepsnet.train.config import TrainConfig
    from stepsnet.train.trainer import resume, train
    from stepsnet.train.typed import from_dict

    torch.set_num_threads(1)
    config = from_dict(TrainConfig, job["config"])
    folder = Path(config.out)
    folder.parent.mkdir(parents=True, exist_ok=True)
    own = (folder.parent / f".{folder.name}.lock").open("a")  # open as long as the process lives, and the lock with it
    fcntl.lockf(own, fcntl.LOCK_EX)  # one study after the other: who comes second finds a finished run
    while is_being_trained(folder):  # by somebody else
        time.sleep(WAIT_SECONDS)
    watchers = [GammaRecorder(every=job["look_every"], always=job["looks"])]
    try:
        if is_run(folder):
            result = resume(folder, [f"data.root={config.data.root}"] if config.data.root else [], watchers)
        else:
            result = train(config, watchers)
        if not result.finished:
            return 128 + (result.signal or 0)
        for name in job["probes"]:
            probe(name, folder, config)
    except (UsageError, RunFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _leave_with_the_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
