"""Stop a training on Ctrl-C at the end of a batch, not in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from lightning.pytorch import Callback


class Interruption(Callback):
    """Remember Ctrl-C and raise `KeyboardInterrupt` at the end of the batch.

    Raised anywhere, it may hit a thread's lock: TensorBoard's writer then never ends, and Lightning, which waits for
    it, has switched Ctrl-C off. A second Ctrl-C does not wait.
    """

    def __init__(self) -> None:
        self.requested = False

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """Stop here if Ctrl-C was pressed."""
        if self.requested:
            raise KeyboardInterrupt

    on_validation_batch_end = on_train_batch_end

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Remember Ctrl-C within this context; afterwards it does what it did before."""
        before = signal.getsignal(signal.SIGINT)
        # Only the main thread may handle signals; and where Ctrl-C was switched off, it stays so.
        if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
            yield
            return

        def remember(number: int, frame: FrameType | None) -> None:
            if self.requested and callable(before):
                before(number, frame)
            self.requested = True

        signal.signal(signal.SIGINT, remember)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
