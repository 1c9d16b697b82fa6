"""Trainers of Lightning for tests: on the CPU, silent, without files beside those of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def quiet_trainer(folder: Path, max_epochs: int) -> Any:
    from lightning.pytorch import Trainer

    return Trainer(
        max_epochs=max_epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
