"""Capture a network once, through `torch.export`.

The result is checked against the model itself, values and gradients, before it is trusted (`verify.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from marquis.curvature.graph.batch_axis import SymbolicShape, batch_axes
from marquis.curvature.graph.network import Network, Ref, Step, op_name, references, rename
from marquis.curvature.graph.verify import check_separation, refuse_training_mode, verify
from marquis.errors import DataError, UnsupportedOperationError
from marquis.functional.call import Model, call, copied_buffers, describe, run, unfused_layers
from marquis.functional.checks import batch_size, does_not_take
from marquis.functional.quiet import quiet
from marquis.functional.replica import replicate
from marquis.functional.unwrap import is_sharded, named_parameters, one_output

NOISY = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")
"""Loggers that report what we report ourselves, as an error."""


_WITHOUT_GRAPH = "use what needs no graph: curvature.operator, curvature.hessian, mq.kernel"


class _Caller(nn.Module):
    """Wrap what is exported, a replica of the user's module or a function, behind `forward(x)`.

    Exporting puts other tensors into a module for a while, which another thread must not see.
    """

    def __init__(self, model: Model, params: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names = list(params)
        if isinstance(model, nn.Module):
            values = {n: nn.Parameter(p, p.is_floating_point()) for n, p in params.items()} if is_sharded(model) else {}
            self.model = replicate(model, values)[0]
        else:
            self.function = model
            self.values = nn.ParameterList([nn.Parameter(p.detach(), p.is_floating_point()) for p in params.values()])

    def forward(self, x: Any) -> Any:
        if not hasattr(self, "model"):
            return one_output(self.function(dict(zip(self.names, self.values, strict=True)), x))
        return run(self.model, x)


def capture(model: Model, params: Mapping[str, Tensor], x: Any) -> Network:
    """Capture the network as it runs on `x`, for any batch size if its code allows that.

    Cost: one symbolic trace (0.03-2 s), then two forward and backward passes to check it.

    Raises:
        UnsupportedOperationError: the model is in training mode where that changes its output, its control flow
            depends on the data, samples of a batch influence each other, or its gradient is not that of its
            forward operations (a custom `autograd.Function`).
    """
    caller = _Caller(model, params)
    caller.training = False
    size = batch_size(x)
    example = x if size > 1 else pytree.tree_map_only(Tensor, lambda t: torch.cat([t, t]) if t.dim() else t, x)
    program, fixed = _export(caller, example, size, describe(model), lambda: _refuse_wrong_inputs(model, params, x))
    network = _convert(program, caller, model, params, None if not fixed else size)
    refuse_training_mode(network)
    _refuse_complex(network, program, describe(model))
    network = _with_axes(network, program, params, x)
    try:
        verify(network, model, params, x)
    except RuntimeError as error:
        if "vmapped" in str(error):
            raise UnsupportedOperationError(
                f"{describe(model)} calls torch.vmap in its forward pass, which no graph holds; write that part for "
                f"the whole batch, or {_WITHOUT_GRAPH}."
            ) from error
        if "inplace operation" in str(error):
            raise UnsupportedOperationError(
                f"{describe(model)} changes a parameter or a tensor in place in its forward pass, so that it has no "
                f"gradient: {_first_line(error)}"
            ) from error
        raise
    check_separation(network, model, params, x)
    return network


def _export(
    caller: _Caller, example: Any, size: int, name: str, refuse_wrong_inputs: Callable[[], None]
) -> tuple[Any, bool]:
    """Export with a free batch dimension; failing that, for this batch size only."""

    def export(dynamic_shapes: Any) -> Any:
        return _quietly(lambda: torch.export.export(caller, (example,), dynamic_shapes=dynamic_shapes, strict=False))

    batch = torch.export.Dim("batch", min=1, max=2**40)  # without a maximum, older releases guard against infinity
    count = batch_size(example)
    dynamic = pytree.tree_map(
        lambda t: {0: batch} if isinstance(t, Tensor) and t.dim() and t.shape[0] == count else None, example
    )
    with unfused_layers:
        try:
            program, fixed = export((dynamic,)), False
        except Exception as first:
            refuse_wrong_inputs()
            if count != size:
                raise UnsupportedOperationError(
                    f"{name} could not be captured for a free batch size, and the batch at hand has one sample: "
                    f"{_first_line(first)} Pass a batch of at least two."
                ) from first
            try:
                program, fixed = export(None), True
            except Exception as second:
                raise UnsupportedOperationError(
                    f"{name} could not be captured as a graph: {_first_line(second)} Its operations must not depend on "
                    "the values of the data (branches, loops or .item() on tensors). Write the forward pass with "
                    "torch operations (for instance torch.where instead of if)."
                ) from second
        if _needs_functionalisation(program.graph):
            try:
                program = _quietly(lambda: program.run_decompositions({}))
            except Exception as third:
                raise UnsupportedOperationError(
                    f"{name} changes a tensor in place that its caller can see (batch statistics in training mode, a "
                    f"constant): {_first_line(third)} Call .eval() on the model, or keep such state in buffers."
                ) from third
    return program, fixed


def _quietly(action: Callable[[], Any]) -> Any:
    """Run with gradients on, so that blocks under `no_grad` stay marked as such, and without torch's own reports."""
    with quiet(NOISY), torch.enable_grad():
        return action()


def _refuse_wrong_inputs(model: Model, params: Mapping[str, Tensor], x: Any) -> None:
    """Raise `DataError` if the model itself cannot be called with `x`: then it is not the capture that failed."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            call(model, params, copied_buffers(model), x)
    except Exception as error:
        raise DataError(does_not_take(model, x, "x", error)) from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


def _mutates(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def _is_view(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return target is not None and getattr(target, "__name__", "") == "getitem"
    return any(a.alias_info is not None and not a.alias_info.is_write for a in target._schema.arguments)


def _needs_functionalisation(graph: Any) -> bool:
    """Return whether an in-place operation writes to a tensor that something else also sees (a view, or its base)."""
    for node in graph.nodes:
        if node.op == "call_function" and _mutates(node.target) and not _writes_state_only(node):
            written = node.args[0]
            has_view = any(_is_view(user.target) for user in written.users if user.op == "call_function")
            if written.op != "call_function" or _is_view(written.target) or has_view:
                return True
    return False


def _writes_state_only(node: Any) -> bool:
    """Return whether a node writes to running statistics and nothing else."""
    return op_name(node.target) in {"batch_norm", "_native_batch_norm_legit", "instance_norm"}


def _functional(target: Any) -> Any:
    """Return the out-of-place twin of an in-place operation."""
    name = op_name(target)
    packet = getattr(torch.ops.aten, name.rstrip("_"), None)
    overload = getattr(packet, target._overloadname, None) if packet is not None else None
    if overload is None:
        raise UnsupportedOperationError(f"in-place operation `{name}` has no out-of-place twin; write it without `_`.")
    return overload


def _convert(program: Any, caller: _Caller, model: Model, params: Mapping[str, Tensor], fixed: int | None) -> Network:
    """Turn the exported program into steps."""
    numbers: dict[Any, int] = {}
    current: dict[Any, Any] = {}  # a node overwritten in place -> the node that holds its value now
    parameters: dict[str, int] = {}
    aliases: dict[int, int] = {}
    constants: dict[int, Callable[[], Any]] = {}
    leaves: list[int] = []
    steps: list[Step] = []
    signature = program.graph_signature
    names = _parameter_names(caller, model, params)
    output = -1

    def refer(argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            while argument in current:
                argument = current[argument]
            return Ref(numbers[argument])
        if isinstance(argument, (list, tuple)):
            return type(argument)(refer(item) for item in argument)
        if isinstance(argument, dict):
            return {key: refer(item) for key, item in argument.items()}
        return argument

    for number, node in enumerate(program.graph.nodes):
        numbers[node] = number
        if node.op == "placeholder":
            if node.name in signature.inputs_to_parameters:
                name = names[signature.inputs_to_parameters[node.name]]
                if name in parameters:
                    aliases[number] = parameters[name]
                else:
                    parameters[name] = number
            elif node.name in signature.inputs_to_buffers:
                constants[number] = _fetch_buffer(model, caller.get_buffer(signature.inputs_to_buffers[node.name]))
            elif node.name in signature.inputs_to_lifted_tensor_constants:
                tensor = program.constants[signature.inputs_to_lifted_tensor_constants[node.name]]
                constants[number] = lambda tensor=tensor: tensor
            else:
                leaves.append(number)
        elif node.op == "get_attr":
            attribute = getattr(program.graph_module, node.target)
            constants[number] = lambda attribute=attribute: attribute
        elif node.op == "call_function":
            if not node.users and not _mutates(node.target):
                continue
            target = node.target
            args, kwargs = refer(node.args), refer(node.kwargs)
            if _mutates(target) and not _writes_state_only(node):
                current[node.args[0]] = node
                target = _functional(target)
            refs = [ref.value for ref in references((args, kwargs))]
            steps.append(Step(number, target, tuple(args), dict(kwargs), _path(node), tuple(dict.fromkeys(refs))))
        elif node.op == "output":
            results = [leaf for leaf in pytree.tree_leaves(node.args) if isinstance(leaf, torch.fx.Node)]
            results = results[len(signature.buffers_to_mutate) :]
            if signature.user_inputs_to_mutate:
                raise UnsupportedOperationError(
                    f"{describe(model)} changes its input in place, so that whoever calls it loses the data; write "
                    "x = x + 1 instead of x += 1, and functions without a trailing underscore."
                )
            if len(results) != 1:
                spec = program.call_spec.out_spec
                keys = f" {spec.context}" if spec.type is dict else ""
                raise UnsupportedOperationError(
                    f"{describe(model)} returns {len(results)} tensors{keys}; curvature needs one output. Pass a "
                    "function (params, x) -> tensor that calls the model and picks the output, for instance "
                    "lambda p, x: torch.func.functional_call(model, p, (x,))[0]."
                )
            output = refer(results[0]).value
    steps = [rename(step, aliases) for step in steps]
    batched: set[int] = set(leaves)
    for step in steps:
        if any(number in batched for number in step.inputs):
            batched.add(step.value)
    return Network(tuple(steps), output, parameters, constants, tuple(leaves), frozenset(batched), {}, fixed)


def _parameter_names(caller: _Caller, model: Model, params: Mapping[str, Tensor]) -> dict[str, str]:
    """Return exported name -> the user's name; a parameter shared by several modules has one name."""
    if not isinstance(model, nn.Module):
        return {f"values.{i}": name for i, name in enumerate(params)}
    inside = named_parameters(caller.model)  # of the replica, whose tensors may be others than the model's
    first = {id(tensor): name for name, tensor in inside.items()}
    return {name: first[id(t)] for name, t in caller.named_parameters(remove_duplicate=False)}


def _fetch_buffer(model: Model, buffer: Tensor) -> Callable[[], Any]:
    """Return a function that fetches the present value of one of the user's buffers."""
    assert isinstance(model, nn.Module)
    owner, name = next((m, n) for m in model.modules() for n, tensor in m._buffers.items() if tensor is buffer)
    reference = weakref.ref(owner)  # a cached network must not keep the model alive
    return lambda: getattr(reference(), name)


def _path(node: Any) -> str:
    """Return the path of the module in which a node ran."""
    stack: list[Any] = list(node.meta.get("nn_module_stack", {}).values())
    path = str(stack[-1][0]) if stack else ""
    if path.startswith("_empty"):
        return ""
    return path.removeprefix("model").removeprefix(".")


def _refuse_complex(network: Network, program: Any, name: str) -> None:
    """Refuse complex tensors that depend on inputs and parameters: the backward pass is written for real numbers."""
    from_parameters = network.dependents(network.parameters.values())
    values = {number: node.meta.get("val") for number, node in enumerate(program.graph.nodes)}
    for step in network.steps:
        complex_ = any(isinstance(t, Tensor) and t.is_complex() for t in pytree.tree_leaves(values[step.value]))
        if complex_ and step.value in from_parameters and step.value in network.batched:
            raise UnsupportedOperationError(
                f"{step.where} of {name} gives complex numbers that depend on parameters, which no rule follows "
                f"backwards; compute with real numbers, or {_WITHOUT_GRAPH}."
            )


def _with_axes(network: Network, program: Any, params: Mapping[str, Tensor], x: Any) -> Network:
    """Return the network with the batch axis of every tensor."""
    shapes: dict[int, SymbolicShape] = {}
    for number, node in enumerate(program.graph.nodes):
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            shapes[number] = tuple(str(s) if not isinstance(s, int) else s for s in value.shape)
    return replace(network, axes=batch_axes(network, shapes, params, x))
