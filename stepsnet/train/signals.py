"""Ctrl-C and SIGTERM: finish the step, save, exit. A second Ctrl-C exits at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SAME_KEYSTROKE_SECONDS = 1.0
GRACE_SECONDS = 20.0


class StopRequest:
    """The first stop signal, if there was one; true if there was."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.at = 0.0

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_on_signals(*, launched: bool) -> Iterator[StopRequest]:
    """Collect stop signals while the body runs. Outside the main thread Python delivers no signals.

    Under a launcher (`launched`), one Ctrl-C arrives twice, from the terminal and the launcher, so only a later one
    counts as the second. A process that waits for a dead one is ended by a watchdog after a grace period.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        again = number == signal.SIGINT and request.signal == signal.SIGINT
        if again and time.monotonic() - request.at > SAME_KEYSTROKE_SECONDS:
            os._exit(128 + number)
        if request.signal is None:
            request.signal, request.at = number, time.monotonic()
            if number == signal.SIGINT:
                _say("Stopping after this step and saving. Press Ctrl-C again to exit at once.")
                if not launched:
                    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the next one ends the process while torch computes

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        if launched:
            with _watchdog(GRACE_SECONDS):
                yield request
        else:
            yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _watchdog(grace: float) -> Iterator[None]:
    """End the process `grace` seconds after SIGTERM if it is still in the body.

    A thread reads signals from a pipe that the interpreter's C handler writes to, because the Python handler above has
    to wait for the main thread, which may be waiting in a collective operation for a process that has died.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    left = threading.Event()

    def watch() -> None:
        while os.read(reader, 1)[0] != signal.SIGTERM:
            pass
        if not left.wait(grace):
            _say(f"Process {os.getpid()} did not exit within {grace:.0f} s of SIGTERM and is ended.")
            os._exit(128 + signal.SIGTERM)

    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        left.set()
        os.write(writer, bytes([signal.SIGTERM]))  # ends the thread's read
        thread.join()
        os.close(reader)
        os.close(writer)


def _say(sentence: str) -> None:
    """Write to standard error without buffering, as a signal handler must, and show the cursor of a terminal again."""
    cursor = "\x1b[?25h" if sys.stderr.isatty() else ""
    os.write(2, f"{cursor}\n{sentence}\n".encode())
