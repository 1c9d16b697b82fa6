"""Approximate the GGN's diagonal at the price of one backward pass, the squared pass.

Walks the captured network backwards with m = diag(M) only, M being the curvature with respect to an intermediate
tensor: `m_x[j] = sum_i T[i, j]² m_y[i]` through every operation with Jacobian T, sums at forks. See
docs/method/curvature.md, Squared pass, and Miani et al., Laplacian Autoencoders, appendix E.4.1. Dropped: every
off-diagonal entry of M. It is exact for the last parametric layer, and for a dense layer before it, when the output
Hessian is diagonal and only elementwise operations lie between; elsewhere it is neither an upper nor a lower bound.

Cost: one forward and one backward pass, linear in the number of pixels; memory as for a plain training step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from marquis.curvature.graph.network import Network, run_into
from marquis.curvature.ops.context import SquaredCall
from marquis.curvature.ops.elementwise import elementwise_squared
from marquis.curvature.squared.schedule import schedule_of
from marquis.errors import DataError


def squared_pass(
    network: Network,
    values: dict[int, Any],
    start: Tensor,
    selected: Iterable[str],
    into: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Return the approximate diagonal, summed over the batch, of each selected parameter.

    Args:
        network: the captured network.
        values: as left by `squared_forward`, or by `network.forward` with all that it kept and the schedule's
            `with_extra`. Consumed: results of steps are removed once no rule needs them.
        start: diagonal of the output Hessian, in the shape of the output (it may depend on the output).
        selected: names of the wanted parameters. What is not upstream of them is not computed.
        into: memory of the parameters' shapes that the result is written to, e.g. views of one vector: then no second
            copy of the whole result is ever held.

    Returns:
        Name -> tensor of the parameter's shape; zero for a parameter that the output does not depend on.

    Raises:
        UnsupportedOperationError: m would have to pass an operation without a rule.
    """
    names = list(dict.fromkeys(selected))
    schedule = schedule_of(network, names)
    output = values[network.output]
    if start.shape != output.shape:
        raise DataError(
            f"start has shape {tuple(start.shape)}, the network's output {tuple(output.shape)}; pass the diagonal of "
            "the output Hessian, one entry per output."
        )
    sums: dict[int, dict[int, Tensor]] = {schedule.output: {0: start}}
    memory = dict(into or {})
    given = {network.parameters[name]: part for name, part in memory.items() if name in network.parameters}

    def receive(number: int, part: int, m: Tensor) -> None:
        parts = sums.setdefault(number, {})
        if number not in given:
            parts[part] = parts[part] + m if part in parts else m
        elif part in parts:
            parts[part] += m
        else:
            parts[part] = given[number].copy_(m)

    results = sorted(number for number in values if number in network.producers)
    with torch.no_grad():
        for action in schedule.actions:
            parts = sums.pop(action.step.value, None)
            if parts is not None:
                call = SquaredCall(action.step, values, parts, frozenset(action.receivers), receive)
                if action.rule is None:
                    elementwise_squared(call, action.group, action.receivers)
                else:
                    action.rule.apply(call)
                del call, parts
            while results and results[-1] >= action.step.value:  # earlier steps cannot have read these
                _drop(values, results.pop())
    for number in results:
        _drop(values, number)
    for name, part in memory.items():
        if network.parameters.get(name) not in sums:
            part.zero_()
    return {name: _result(network, name, values, sums, start) for name in names}


def _drop(values: dict[int, Any], number: int) -> None:
    """Remove the result of a step, and what was kept besides it."""
    del values[number]
    values.pop(~number, None)


def _result(
    network: Network, name: str, values: dict[int, Any], sums: dict[int, dict[int, Tensor]], start: Tensor
) -> Tensor:
    """Return the diagonal of one parameter; zeros where nothing arrived."""
    if name not in network.parameters:
        raise DataError(f"the captured network has no parameter named '{name}'.")
    number = network.parameters[name]
    if number in sums:
        return sums[number][0]
    return torch.zeros(values[number].shape, dtype=start.dtype, device=start.device)


def squared_forward(network: Network, values: dict[int, Any], selected: Iterable[str]) -> Tensor:
    """Run the network, keeping only what `squared_pass` will read for these parameters.

    Where a rule needs no more than a tensor's shape, an expanded NaN takes its place: no memory, and no wrong
    number if it should be read after all.
    """
    schedule = schedule_of(network, selected)
    with torch.no_grad():
        for step in network.steps:
            run_into(step, values, schedule.with_extra)
            for number in network.released[step.value]:
                if number in schedule.shaped:
                    values[number] = _shape_only(values[number])
                elif number not in schedule.read and number != network.output:
                    del values[number]
    return values[network.output]


def _shape_only(value: Any) -> Any:
    """Return a tensor of the same shape that holds no memory, for values of which only the shape is read."""
    if isinstance(value, (list, tuple)):
        return [_shape_only(item) for item in value]
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.new_full((), float("nan")).expand(value.shape)
