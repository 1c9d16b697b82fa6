"""The three sizes of the experiment `vl`; every number that was cut from the paper's is here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Overfitting:
    """The part in which the CNN sees few images for so long that it overfits, as the paper's networks do."""

    train: int = 1_000
    epochs: int = 80
    batch: int = 64
    lr: float = 3e-3
    temperings: tuple[float, ...] = (0.01, 0.1, 0.3)
    seeds: tuple[int, ...] = (0, 1, 2)
    watch_every: int = 4
    """Validation NLL is noted after every so many epochs, to see whether it rises again."""


@dataclass(frozen=True)
class Settings:
    """How large the experiment is."""

    data: str = "fashion-mnist"
    train: int = 10_000
    validation: int = 2_000
    test: int = 10_000
    batch: int = 64
    lr: float = 3e-3
    width: int = 8
    epochs: int = 12
    temperings: tuple[float, ...] = (0.01, 0.03, 0.1, 1.0)
    seeds: tuple[int, ...] = (0, 1)
    multipliers: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0)
    study_temperings: tuple[float, ...] = (1.0, 0.1)
    resnet_width: float = 1 / 8
    resnet_epochs: int = 4
    overfitting: Overfitting = Overfitting()


SETTINGS = {
    "quick": Settings(
        train=128,
        validation=64,
        test=128,
        width=2,
        epochs=2,
        temperings=(0.1, 1.0),
        seeds=(0,),
        multipliers=(1.0, 10.0),
        study_temperings=(1.0,),
        resnet_width=1 / 32,
        resnet_epochs=1,
        overfitting=Overfitting(train=64, epochs=4, temperings=(0.01, 0.1), seeds=(0,), watch_every=2),
    ),
    "default": Settings(),
    "full": Settings(
        train=55_000,
        validation=5_000,
        batch=128,
        lr=1e-4,
        width=16,
        epochs=200,
        temperings=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
        seeds=(0, 1, 2),
        resnet_width=1 / 4,
        resnet_epochs=200,
        overfitting=Overfitting(epochs=200, temperings=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)),
    ),
}
