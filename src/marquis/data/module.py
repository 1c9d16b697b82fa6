"""Define a Lightning data module over `load`: training, validation and test loaders that repeat exactly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from marquis.arguments import AtLeastOne, FromZero, checked
from marquis.data import load
from marquis.data.registry import SETS, set_name
from marquis.data.value import Data, held_out_rows
from marquis.errors import DataError

DEFAULT_VALIDATION_ROWS = 5000
_Loader = DataLoader[tuple[Tensor, ...]]


class EpochShuffle(Sampler[int]):
    """Shuffle anew every epoch, as a function of seed and epoch only.

    Lightning calls `set_epoch`, so that training resumed at epoch 7 sees what an uninterrupted run would have seen;
    without Lightning each pass counts as an epoch. It has its own generator.
    """

    def __init__(self, count: int, seed: int) -> None:
        """Prepare permutations of `range(count)`."""
        self.count, self.seed, self.epoch = count, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that comes next."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.count

    def __iter__(self) -> Iterator[int]:
        """Iterate over the rows in the order of one epoch."""
        # Distant seeds, so that seed 1 in epoch 0 is not seed 0 in epoch 1.
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        self.epoch += 1
        yield from torch.randperm(self.count, generator=generator).tolist()


class DataModule(LightningDataModule):
    """Load training, validation and test batches of a data set.

    Validation rows are chosen from the training rows with `seed`; CelebA has an official validation split, which is
    used unless `validation` is passed. Test rows are those of `load(name, "test")`, never used for anything else.

    Args:
        data: A name or path for `load`, or training rows that are already there.
        batch_size: Rows per batch.
        validation: Number of training rows to validate on (an integer), share of them (a float below 1), or 0
            for none; or the validation rows themselves. By default 5000 of 50000 or more, a tenth of fewer.
        seed: Chooses the validation rows and the order of training.
        test: Test rows, where `data` is `Data`.
        data_dir: As in `load`.
        num_workers: Processes that load batches. The data are in memory; 0 is fastest for most sets.
        **options: Passed on to `load`: `fold`, `kind`, `target`, `size`, `limit`, `download`, ...

    Attributes:
        train: Training rows; after `setup`.
        validation: Validation rows, or None.
        test: Test rows, or None.
    """

    @checked
    def __init__(
        self,
        data: str | os.PathLike[str] | Data,
        *,
        batch_size: AtLeastOne = 128,
        validation: int | float | Data | None = None,
        seed: int = 42,
        test: Data | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        num_workers: FromZero = 0,
        **options: Any,
    ) -> None:
        """Store the arguments, which the class describes."""
        super().__init__()
        if not isinstance(data, Data) and test is not None:
            raise DataError("pass test rows only with training rows; a name has its own")
        if isinstance(data, Data) and (options or data_dir is not None):
            options_passed = ", ".join([*options, "data_dir"] if data_dir is not None else options)
            raise DataError(f"{options_passed} cannot apply: the training rows are loaded already")
        self._data = data if isinstance(data, Data) else set_name(data) or data
        self._test, self._data_dir, self._options = test, data_dir, options
        self.batch_size, self.num_workers, self.seed = batch_size, num_workers, seed
        self._validation = validation
        self._is_set_up = False
        self.train: Data
        self.validation: Data | None = None
        self.test: Data | None = None

    def prepare_data(self) -> None:
        """Download what is missing, in one process only."""
        if isinstance(self._data, Data):
            return
        from marquis.data.download import find_or_download

        named = SETS.get(str(self._data))
        if named is not None and named.addresses:
            find_or_download(named, "all", self._data_dir, download=self._options.get("download", True))

    def setup(self, stage: str | None = None) -> None:
        """Load the rows and split off the validation rows; the same rows each time."""
        if self._is_set_up:
            return
        if isinstance(self._data, Data):
            rows, self.test = self._data, self._test
        else:
            rows, self.test = self._load("train"), self._load("test")
        if isinstance(self._validation, Data):
            self.train, self.validation = rows, self._validation
        elif self._data == "celeba" and self._validation is None:
            self.train, self.validation = rows, self._load("validation")
        else:
            held_out = self._validation_rows(len(rows))
            training, chosen = held_out_rows(len(rows), held_out, self.seed)
            self.train = rows[training]
            self.validation = rows[chosen] if held_out else None
        self._is_set_up = True

    def train_dataloader(self) -> _Loader:
        """Return shuffled training batches; the order is a function of seed and epoch."""
        self.setup()
        return self._loader(self.train, EpochShuffle(len(self.train), self.seed))

    def val_dataloader(self) -> _Loader | list[_Loader]:
        """Return validation batches in order; an empty list if there are none."""
        self.setup()
        return self._loader(self.validation) if self.validation is not None else []

    def test_dataloader(self) -> _Loader | list[_Loader]:
        """Return test batches in order; an empty list if there are none."""
        self.setup()
        return self._loader(self.test) if self.test is not None else []

    def _load(self, split: str) -> Data:
        """Load a split of the named data."""
        assert not isinstance(self._data, Data)
        return load(self._data, split, self._data_dir, **self._options)

    def _validation_rows(self, count: int) -> int:
        """Return the number of validation rows, checked."""
        validation = self._validation
        assert not isinstance(validation, Data)
        if validation is None:
            validation = DEFAULT_VALIDATION_ROWS if count >= 10 * DEFAULT_VALIDATION_ROWS else 0.1
        share = isinstance(validation, float)
        rows = round(validation * count) if share and 0 <= validation < 1 else -1 if share else validation
        if not 0 <= rows < count:
            raise DataError(f"validation={validation} of {count} training rows leaves none to train on, or is negative")
        return rows

    def _loader(self, data: Data, sampler: EpochShuffle | None = None) -> _Loader:
        """Return a loader of these rows."""
        return DataLoader(
            data.tensor_dataset(),
            batch_size=self.batch_size,
            sampler=sampler,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
        )
