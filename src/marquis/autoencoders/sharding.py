"""Split training data among processes, so that their batches together are those of a single process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Sampler

from marquis.errors import UnsupportedOperationError


class ShareSampler(Sampler[int]):
    """Yield every `count`-th row of another sampler's order, beginning with row number `rank`.

    Rows that would leave the processes with different numbers are left out, at most `count - 1` and different ones in
    every epoch. Batches of B in each of `count` processes are then the batches of `count B` of a single process;
    Lightning's own sampler would shuffle once more.
    """

    def __init__(self, order: Any, rank: int, count: int) -> None:
        self.order, self.rank, self.count = order, rank, count

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next."""
        set_epoch = getattr(self.order, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.order) // self.count

    def __iter__(self) -> Iterator[int]:
        """Yield the rows of one process."""
        last = len(self) * self.count
        for number, row in enumerate(self.order):
            if number < last and number % self.count == self.rank:
                yield row


class SharedData(LightningDataModule):
    """Split the training rows of a data module among processes; every process has all validation rows.

    So every process has the same validation loss, of every row once.
    """

    def __init__(self, inner: LightningDataModule) -> None:
        super().__init__()
        self.inner = inner

    def prepare_data(self) -> None:
        """Prepare the inner module."""
        self.inner.prepare_data()

    def setup(self, stage: str | None = None) -> None:
        """Set up the inner module."""
        self.inner.setup(stage)  # pyright: ignore[reportArgumentType]

    def train_dataloader(self) -> Any:
        """Return a loader of this process's rows.

        Raises:
            UnsupportedOperationError: The inner loader cannot be dealt out.
        """
        loader, trainer = self.inner.train_dataloader(), self.trainer
        assert trainer is not None
        if not isinstance(loader, DataLoader) or loader.batch_size is None:
            raise UnsupportedOperationError(
                f"the rows of a {type(loader).__name__} cannot be dealt out to several processes; give a DataLoader "
                "with batch_size=, or pass use_distributed_sampler=True and let Lightning do it."
            )
        return DataLoader(
            loader.dataset,
            loader.batch_size,
            sampler=ShareSampler(loader.sampler, trainer.global_rank, trainer.world_size),
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            drop_last=loader.drop_last,
            persistent_workers=loader.persistent_workers,
        )

    def val_dataloader(self) -> Any:
        """Return the inner module's validation loader."""
        return self.inner.val_dataloader()
