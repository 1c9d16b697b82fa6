"""Networks that several experiments share: trained once, kept as safetensors next to the cells."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from marquis.errors import DataError
from marquis.io.tensors import load_tensors, save_tensors

_KIND = "trained-network"


def shared_networks(out: str | Path) -> Path:
    """The folder of networks that an experiment with results in `out` shares with its neighbours."""
    return Path(out).parent / "shared-networks"


def trained(
    folder: Path,
    name: str,
    settings: Mapping[str, Any],
    build: Callable[[], nn.Module],
    train: Callable[[nn.Module], None],
) -> nn.Module:
    """`build()` after `train`, from the folder if it was trained before with the same settings; in evaluation mode.

    Args:
        folder: Where the networks lie; experiments that share networks are given the same folder.
        name: For the file's name, which also holds a digest of the settings.
        settings: All that the weights depend on (data, sizes, optimiser, seed), as JSON values.
        build: Returns the untrained network.
        train: Trains it in place.
    """
    wanted = json.dumps(dict(settings), sort_keys=True)
    path = folder / f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}.safetensors"
    network = build()
    try:
        _, _, tensors = load_tensors(path, (_KIND,))
        network.load_state_dict(tensors)
    except DataError:  # not there, or cut short when the machine stopped: train
        train(network)
        folder.mkdir(parents=True, exist_ok=True)
        save_tensors(path, _KIND, {"settings": json.loads(wanted)}, network.state_dict())
    return network.eval()
