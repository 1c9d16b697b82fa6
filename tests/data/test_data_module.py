"""The data module: which rows are where, and that training repeats exactly."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import LightningModule

from helpers.trainers import quiet_trainer
from marquis.data import Data, DataModule
from marquis.errors import DataError


def numbered(count: int, split: str = "train") -> Data:
    return Data(torch.arange(count, dtype=torch.float32).unsqueeze(1), None, "numbers", split)


def rows_of(loader) -> list[int]:
    return [int(row) for (x,) in loader for row in x[:, 0]]


def test_digits_by_name():
    module = DataModule("digits", batch_size=100)
    module.prepare_data()
    module.setup("fit")
    assert (len(module.train), len(module.validation), len(module.test)) == (1294, 144, 359)
    x, y = next(iter(module.train_dataloader()))
    assert x.shape == (100, 1, 8, 8) and y.shape == (100,)
    assert sum(len(x) for x, _ in module.test_dataloader()) == 359


def test_validation_rows_are_taken_from_training_rows():
    module = DataModule(numbered(50))
    train, validation = rows_of(module.train_dataloader()), rows_of(module.val_dataloader())
    assert sorted(train + validation) == list(range(50)) and len(validation) == 5
    assert validation == sorted(validation) and train != sorted(train)
    assert module.test_dataloader() == []
    assert rows_of(DataModule(numbered(50)).val_dataloader()) == validation
    assert rows_of(DataModule(numbered(50), seed=1).val_dataloader()) != validation


@pytest.mark.parametrize(
    ("count", "validation", "expected"),
    [
        (50000, None, 5000),
        (49999, None, 5000),
        (60000, None, 5000),
        (100, 30, 30),
        (100, 0.25, 25),
        (100, 0, 0),
        (9, None, 1),
    ],
)
def test_how_many_validation_rows(count, validation, expected):
    module = DataModule(numbered(count), validation=validation)
    module.setup()
    assert len(module.train) == count - expected
    assert (0 if module.validation is None else len(module.validation)) == expected


@pytest.mark.parametrize("validation", [100, 101, -1, 1.0, 1.5, -0.1])
def test_validation_that_leaves_nothing(validation):
    with pytest.raises(DataError, match=f"validation={validation} of 100"):
        DataModule(numbered(100), validation=validation).setup()


def test_the_order_is_a_function_of_seed_and_epoch():
    loader = DataModule(numbered(50), seed=3).train_dataloader()
    first, second = rows_of(loader), rows_of(loader)
    assert sorted(first) == sorted(second) and first != second
    torch.manual_seed(99)  # the global state has no say
    again = DataModule(numbered(50), seed=3).train_dataloader()
    again.sampler.set_epoch(1)
    assert rows_of(again) == second
    before = torch.random.get_rng_state()
    iter(again.sampler).__next__()
    assert torch.equal(before, torch.random.get_rng_state())


class Recorder(LightningModule):
    """Notes which rows it was trained on in each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: dict[int, list[int]] = {}

    def training_step(self, batch, index):
        self.seen.setdefault(self.current_epoch, []).extend(int(row) for row in batch[0][:, 0])
        return self.weight**2

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore")
def test_resumed_training_sees_what_an_uninterrupted_run_sees(tmp_path):
    whole, first, second = Recorder(), Recorder(), Recorder()
    quiet_trainer(tmp_path, 3).fit(whole, datamodule=DataModule(numbered(20), batch_size=8))
    half = quiet_trainer(tmp_path, 2)
    half.fit(first, datamodule=DataModule(numbered(20), batch_size=8))
    half.save_checkpoint(tmp_path / "half.ckpt")
    quiet_trainer(tmp_path, 3).fit(
        second, datamodule=DataModule(numbered(20), batch_size=8), ckpt_path=tmp_path / "half.ckpt"
    )
    assert len({tuple(rows) for rows in whole.seen.values()}) == 3  # a new order each epoch
    assert first.seen[1] == whole.seen[1]
    assert second.seen == {2: whole.seen[2]}


def test_given_test_rows():
    module = DataModule(numbered(20), test=numbered(7, "test"))
    assert rows_of(module.test_dataloader()) == list(range(7))


def test_names_pass_options_on(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "\n".join(f"{i},{2 * i}" for i in range(20)))
    module = DataModule(path, target="b", validation=0)
    x, y = next(iter(module.train_dataloader()))
    assert torch.equal(y, 2 * x) and len(x) == 16
    assert module.val_dataloader() == [] and len(module.test) == 4


def test_the_official_validation_split_of_celeba(monkeypatch):
    rows = {"train": numbered(30), "validation": numbered(4), "test": numbered(5)}
    monkeypatch.setattr("marquis.data.module.load", lambda name, split, data_dir, **options: rows[split])
    module = DataModule("celeba")
    module.setup()
    assert (len(module.train), len(module.validation), len(module.test)) == (30, 4, 5)
    module = DataModule("celeba", validation=3)
    module.setup()
    assert (len(module.train), len(module.validation)) == (27, 3)


def test_downloads_happen_before_training(tiny, server):
    server.files = {name: tiny.packed(name) for name in tiny.arrays}
    tiny.at(server.address)
    DataModule("tiny").prepare_data()
    assert sorted(server.requests) == sorted(tiny.arrays)


def test_settings_that_cannot_apply():
    with pytest.raises(DataError, match="batch_size is 0"):
        DataModule("digits", batch_size=0)
    with pytest.raises(DataError, match="a name has its own"):
        DataModule("digits", test=numbered(3))
    with pytest.raises(DataError, match="limit, data_dir cannot apply"):
        DataModule(numbered(3), limit=2, data_dir="x")
