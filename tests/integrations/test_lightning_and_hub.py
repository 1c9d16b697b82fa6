"""The Lightning callback and shared folders, with the real libraries (nothing is uploaded)."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import marquis as mq
from marquis.errors import DataError, ModelMismatchError
from marquis.integrations.hub import from_pretrained, save_pretrained

L = pytest.importorskip("lightning.pytorch")
warnings.filterwarnings("ignore", module="lightning")


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.1), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.log("val", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.02)


def test_the_callback_gives_a_module_its_posterior(tmp_path):
    from marquis.integrations.lightning import LaplaceCallback

    torch.manual_seed(0)
    x = torch.randn(60, 2)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    loader = DataLoader(data, 20)
    model = Classifier()
    callback = LaplaceCallback("categorical", structure="full")
    keeper = L.callbacks.ModelCheckpoint(tmp_path, monitor="val")
    trainer = L.Trainer(
        max_epochs=3, callbacks=[callback, keeper], logger=False, accelerator="cpu", enable_progress_bar=False
    )
    training = model.training
    trainer.fit(model, loader, loader)
    expected = mq.Laplace(model.eval(), "categorical", "full").fit(loader, progress=False)
    torch.testing.assert_close(callback.laplace.curvature.to_dense(), expected.curvature.to_dense())
    expected.tune()
    metrics = trainer.callback_metrics
    assert float(metrics["laplace/log_evidence"]) == pytest.approx(float(expected.log_evidence()), rel=1e-4)
    nll = -expected.predict(x).log_prob(data.tensors[1]).mean()
    assert float(metrics["laplace/val_nll"]) == pytest.approx(float(nll), rel=1e-3)
    assert 0 <= float(metrics["laplace/val_ece"]) <= 1 and training
    (saved,) = tmp_path.glob("*.laplace.mq")
    torch.testing.assert_close(mq.load(saved, model).predict(x).probs, expected.predict(x).probs, rtol=1e-3, atol=1e-4)


def test_a_folder_holds_everything_but_the_network(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(2, 3).eval()
    x, y = torch.randn(9, 2), torch.arange(9) % 3
    la = mq.Laplace(model, "categorical").fit([(x, y)], progress=False)
    folder = save_pretrained(la, tmp_path / "shared")
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "marquis.json", "posterior.safetensors"]
    assert json.loads((folder / "marquis.json").read_text())["data"] == 9
    assert "library_name: marquis" in (folder / "README.md").read_text()
    torch.testing.assert_close(from_pretrained(folder, model).predict(x).probs, la.predict(x).probs)
    with pytest.raises(ModelMismatchError):
        from_pretrained(folder, nn.Linear(3, 3).eval())
    with pytest.raises(DataError, match="save_pretrained"):
        from_pretrained(tmp_path, model)
