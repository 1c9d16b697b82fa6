"""A LightningModule that holds an `OnlineLaplace` saves and restores its curvature."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import marquis as mq
from marquis.errors import DataError
from marquis.integrations.lightning import OnlineLaplaceCheckpoint


class Regression(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1))
        generator = torch.Generator().manual_seed(0)
        self.online = mq.OnlineLaplace(self.network, "gaussian", num_data=40, generator=generator)

    def training_step(self, batch, _):
        return self.online.step(*batch)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


def trained(folder, epochs, checkpoint=None, callbacks=None):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 2, generator=generator)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=10)
    module = Regression()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    callbacks = [OnlineLaplaceCheckpoint()] if callbacks is None else callbacks
    trainer = Trainer(max_epochs=epochs, callbacks=callbacks, enable_checkpointing=False, **quiet)
    trainer.fit(module, loader, ckpt_path=checkpoint)
    trainer.save_checkpoint(folder / "last.ckpt")
    return module


@pytest.mark.filterwarnings("ignore")
def test_resumed_training_is_that_of_one_go(tmp_path):
    whole = trained(tmp_path, 4)
    trained(tmp_path, 2)
    resumed = trained(tmp_path, 4, tmp_path / "last.ckpt")
    one, other = whole.online.state, resumed.online.state
    assert one.curvature is not None and other.curvature is not None and one.steps == other.steps == 16
    assert torch.equal(one.curvature.diagonal(), other.curvature.diagonal())
    assert one.noise_precision == other.noise_precision
    for ours, theirs in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_without_curvature_is_refused(tmp_path):
    trained(tmp_path, 1, callbacks=[])
    with pytest.raises(DataError, match="no curvature of online"):
        trained(tmp_path, 2, tmp_path / "last.ckpt")
    with pytest.raises(DataError, match="no attribute that is an OnlineLaplace"):
        OnlineLaplaceCheckpoint().on_save_checkpoint(None, LightningModule(), {})  # pyright: ignore[reportArgumentType]
