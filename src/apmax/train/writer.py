"""Checkpoints are brought to the disk beside the training, by one thread."""

from __future__ import annotations

import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from apmax.train import checkpoints as checkpoint
from apmax.train.failures import NotWrittenError


class Writer:
    """Writes one checkpoint at a time to `path`; what fails there is raised where the training asks next.

    The thread begins with the first checkpoint. A program that ends while one is being written waits for it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.thread: ThreadPoolExecutor | None = None
        self.current: Future[float] | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self.current is not None and not self.current.done()

    def write(self, content: memoryview) -> None:
        """Begin to write a checkpoint's content; `collect(wait=True)` must have come before."""
        assert self.current is None, "one checkpoint at a time"
        self.thread = self.thread or ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self.current = self.thread.submit(timed, self.path, content)

    def collect(self, *, wait: bool = False) -> float:
        """Return the seconds that the checkpoint took which has ended since, 0 if none has.

        Args:
            wait: Until the one being written is on the disk.

        Raises:
            NotWrittenError: It could not be written.
        """
        if self.current is None or not (wait or self.current.done()):
            return 0.0
        error = self.current.exception()
        ended, self.current = self.current, None
        if error is not None:
            raise NotWrittenError(self.path, error) from error
        return ended.result()

    def close(self) -> None:
        """Wait for the last checkpoint and end the thread; a failure nobody asked for becomes a warning.

        Another checkpoint begins another thread.
        """
        if self.thread is not None:
            self.thread.shutdown(wait=True)
            self.thread = None
        try:
            self.collect()
        except NotWrittenError as error:
            # Another exception is under way, and is what the caller must see.
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)


def timed(path: Path, content: memoryview) -> float:
    """Write the checkpoint and return the seconds it took."""
    started = time.monotonic()
    checkpoint.write(path, content)
    return time.monotonic() - started
