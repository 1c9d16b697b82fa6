"""Convert the learner's state to plain numbers and tensors, so that checkpoints load without running code."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from marquis.errors import DataError, ModelMismatchError
from marquis.online.state import OnlineState
from marquis.structures import Layout, Structure, from_state_dict

_STRUCTURES = ("curvature", "pending")
STATE_BYTES = (16, 5056)
"""Sizes of the states of random generators on GPUs and CPUs."""


def pack(state: OnlineState, streams: Mapping[str, torch.Generator], layout: Layout) -> dict[str, Any]:
    """Return the state as a dictionary of numbers, strings and tensors."""
    numbers = {field.name: getattr(state, field.name) for field in fields(state) if field.name not in _STRUCTURES}
    # Sums by group of outputs stand beside the numbers, which are what JSON can hold.
    by_group = {name: value.clone() for name, value in numbers.items() if isinstance(value, Tensor)}
    numbers |= {name: float(value.sum()) for name, value in by_group.items()}
    structures: dict[str, Structure | None] = {name: getattr(state, name) for name in _STRUCTURES}
    return {
        "numbers": numbers,
        "shapes": {name: list(shape) for name, shape in layout.shapes.items()},
        "structures": {name: value.state_dict() for name, value in structures.items() if value is not None},
        "streams": {name: stream.get_state() for name, stream in streams.items()},
        "noise": by_group,
    }


def unpack(
    packed: Mapping[str, Any], streams: Mapping[str, torch.Generator], layout: Layout, device: torch.device
) -> OnlineState:
    """Return the state that `pack` saved, and restore the random generators.

    Raises:
        ModelMismatchError: The state belongs to other parameters.
        DataError: It is not a state of the online learner, or not a complete one.
    """
    try:
        shapes = {name: tuple(shape) for name, shape in packed["shapes"].items()}
        numbers = dict(packed["numbers"]) | dict(packed.get("noise", {}))  # files of 0.1.0 have no groups
        held = {name: from_state_dict(value).to(device=device) for name, value in packed["structures"].items()}
        states = {name: packed["streams"][name].cpu() for name in streams}
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"this is not the complete state of an online learner ({error!r}).") from error
    if shapes != layout.shapes:
        raise ModelMismatchError(
            f"the saved state is over the parameters {list(shapes)} with other names or shapes than the model's "
            f"{list(layout.names)}; build the network with the sizes it was trained with."
        )
    if set(numbers) | set(_STRUCTURES) != {field.name for field in fields(OnlineState)}:
        raise DataError(f"this is not the state of an online learner of this version: it holds {sorted(numbers)}.")
    for name, stream in streams.items():
        _set(stream, states[name])
    return OnlineState(**{**{name: held.get(name) for name in _STRUCTURES}, **numbers})


def _set(stream: torch.Generator, state: torch.Tensor) -> None:
    """Restore a random generator; the state of one on another kind of device only seeds it."""
    if len(state) in STATE_BYTES and len(state) != len(stream.get_state()):
        stream.manual_seed(int.from_bytes(hashlib.sha256(state.numpy().tobytes()).digest()[:7], "big"))
    else:
        stream.set_state(state)
