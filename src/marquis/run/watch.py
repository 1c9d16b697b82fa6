"""Notice in training that the run's configuration was removed or replaced."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer

from marquis.run.directory import Run


class ConfigWatch(Callback):
    """Look for `config.json` at the end of every epoch; where it was removed, write it again and stop.

    Attributes:
        removed: Whether it was.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.removed = run, False

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop after this epoch, whose checkpoint is still written, if the configuration was removed."""
        if trainer.is_global_zero and not self.run.check_config():
            self.removed = trainer.should_stop = True
