"""Look through the wrappers that training puts around a network: names and values are those of the module inside.

`DistributedDataParallel`, `DataParallel`, `torch.compile`, averaged models, activation checkpointing, Lightning's
Fabric and PEFT each add a module whose forward pass is that of the one inside. They are recognised here and nowhere
else, also in the middle of a network, so that parameter names, patterns, prior groups and saved posteriors are
the same with and without them. `fully_shard` (FSDP2) changes a module's class and parameters in place: its replica has
the class from before, and whole tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from marquis.errors import UnsupportedOperationError

WRAPPERS = {
    ("torch", "DistributedDataParallel"): "module",
    ("torch", "DataParallel"): "module",
    ("torch", "AveragedModel"): "module",
    ("torch", "OptimizedModule"): "_orig_mod",
    ("torch", "CheckpointWrapper"): "_checkpoint_wrapped_module",
    ("lightning", "_FabricModule"): "_original_module",
    ("peft", "PeftModel"): "base_model",
    ("peft", "BaseTuner"): "model",
}
"""Package and class of a wrapper (or of a class that it derives from), and the attribute that holds what it wraps."""

REFUSED = {
    ("torch", "FullyShardedDataParallel"): "keeps all weights in one flat tensor; use fully_shard (FSDP2), or the "
    "module from before it was wrapped",
    ("deepspeed", "DeepSpeedEngine"): "keeps the weights elsewhere; pass engine.module, gathered",
    ("bitsandbytes", "Linear4bit"): "has quantised weights without a derivative; load the network in bfloat16",
    ("bitsandbytes", "Linear8bitLt"): "has quantised weights without a derivative; load the network in bfloat16",
}
"""Package and class of what cannot work, with the reason and the remedy."""

_KNOWN: dict[type, str | None] = {}


def inner(module: nn.Module) -> nn.Module | None:
    """Return the module that a wrapper wraps, one level deep; None for anything else.

    Raises:
        UnsupportedOperationError: There is no right answer for this wrapper.
    """
    kind = type(module)
    if kind not in _KNOWN:
        names = [(base.__module__.partition(".")[0].replace("pytorch_", ""), base.__name__) for base in kind.__mro__]
        reason = next((REFUSED[name] for name in names if name in REFUSED), None)
        if reason is not None:
            raise UnsupportedOperationError(f"{kind.__name__} {reason}.")
        _KNOWN[kind] = next((WRAPPERS[name] for name in names if name in WRAPPERS), None)
    attribute = _KNOWN[kind]
    if attribute is None:
        return None
    config = getattr(module, "active_peft_config", None) if attribute == "base_model" else None
    if config is not None and config.is_prompt_learning:
        raise UnsupportedOperationError(
            f"{kind.__name__} with {type(config).__name__} changes the inputs, not the weights of layers; pass a "
            "function (params, x) -> outputs, or use an adapter such as LoRA."
        )
    return getattr(module, attribute)


def unwrap(model: Any) -> Any:
    """Return the module inside all wrappers; anything else than a module is returned as it is."""
    while isinstance(model, nn.Module) and (wrapped := inner(model)) is not None:
        model = wrapped
    return model


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules inside all wrappers, each once, as `nn.Module.named_modules` does."""
    visited: set[int] = set()

    def walk(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
        module = unwrap(module)
        if id(module) in visited:
            return
        visited.add(id(module))
        yield path, module
        for name, child in module._modules.items():
            if child is not None:
                yield from walk(child, f"{path}.{name}" if path else name)

    return walk(model, "")


def named_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters by their names inside all wrappers, each tensor once."""
    return _named(model, lambda module: module._parameters)


def named_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers by their names inside all wrappers, each tensor once."""
    return _named(model, lambda module: module._buffers)


def _named(model: nn.Module, tensors_of: Callable[[nn.Module], Mapping[str, Tensor | None]]) -> dict[str, Tensor]:
    """Return the tensors of all modules by their path, each tensor once."""
    named: dict[str, Tensor] = {}
    visited: set[int] = set()
    for path, module in named_modules(model):
        for name, tensor in tensors_of(module).items():
            if tensor is not None and id(tensor) not in visited:
                visited.add(id(tensor))
                named[f"{path}.{name}" if path else name] = tensor
    return named


def submodule(model: nn.Module, path: str) -> nn.Module:
    """Return the module at a path inside all wrappers."""
    return dict(named_modules(model))[path]


# --- FSDP2 -------------------------------------------------------------------------------------------------------


def is_sharded(model: Any) -> bool:
    """Return whether `fully_shard` spread parameters of the model over processes.

    Raises:
        UnsupportedOperationError: Something else did (tensor parallelism), whose layers expect spread inputs.
    """
    if not isinstance(model, nn.Module) or not any(map(_is_dtensor, model.parameters())):
        return False
    if not any(class_before_sharding(module) is not type(module) for module in model.modules()):
        raise UnsupportedOperationError(
            f"parameters of {type(unwrap(model)).__name__} are DTensors, but not those of fully_shard: tensor "
            "parallelism changes the layers themselves. Pass the network from before parallelize_module."
        )
    return True


def independent_copy(model: nn.Module) -> nn.Module:
    """Return a copy of the module inside all wrappers that shares nothing with it, to be trained.

    Raises:
        UnsupportedOperationError: The module cannot be copied.
    """
    name = type(unwrap(model)).__name__
    if is_sharded(model):
        raise UnsupportedOperationError(
            f"{name} is spread over processes by fully_shard, and such a network cannot be copied to be trained here; "
            "pass the network from before fully_shard, or train it yourself and fit mq.Laplace to it."
        )
    try:
        return copy.deepcopy(unwrap(model))
    except Exception as error:
        raise UnsupportedOperationError(
            f"{name} cannot be copied ({type(error).__name__}: {error}), and Marquis never changes the model. Remove "
            "tensors that are part of a graph from its attributes."
        ) from error


def _is_dtensor(tensor: Tensor) -> bool:
    """Return whether a tensor is spread over processes."""
    return type(tensor) is not Tensor and type(tensor) is not nn.Parameter and hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """Return a parameter with all its entries; gathers those of a DTensor, which every process has to call."""
    if not _is_dtensor(tensor):
        return tensor
    gathered: Tensor = tensor.detach().full_tensor()  # type: ignore[attr-defined]
    return nn.Parameter(gathered, requires_grad=tensor.requires_grad)


def class_before_sharding(module: nn.Module) -> type[nn.Module]:
    """Return the class that a module had before `fully_shard`, which puts a class of its own in front."""
    bases = type(module).__mro__
    return bases[2] if bases[1].__name__ == "FSDPModule" else bases[0]


def without_training_hooks(hooks: Mapping[int, Any]) -> dict[int, Any]:
    """Return a module's hooks without those that only training needs, and that stop a derivative in forward mode.

    `fully_shard` gathers and scatters weights by hooks; `gradient_checkpointing_enable` of Hugging Face has one that
    calls `requires_grad_` on embedded inputs.
    """

    def trains_only(hook: Any) -> bool:
        sharding = type(getattr(hook, "__self__", None)).__name__ == "FSDPState"
        return sharding or getattr(hook, "__name__", "") == "make_inputs_require_grads"

    return {key: hook for key, hook in hooks.items() if not trains_only(hook)}


# --- outputs -----------------------------------------------------------------------------------------------------


def one_output(output: Any) -> Any:
    """Return the tensor that is meant where a network returns an object of several: `logits`, or the only one.

    That is what models of Hugging Face return (`ModelOutput`). Anything else is returned as it is.
    """
    if isinstance(output, (tuple, list)) and len(output) == 1 and isinstance(output[0], Tensor):
        return output[0]
    if isinstance(output, (Tensor, tuple, list)):
        return output
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    tensors = [value for value in output.values() if isinstance(value, Tensor)] if isinstance(output, Mapping) else []
    return tensors[0] if len(tensors) == 1 else output


def plain_inputs(x: Any) -> Any:
    """Return a mapping of inputs (a tokeniser's `BatchEncoding`) as the dictionary that torch looks into."""
    return dict(x) if isinstance(x, Mapping) and type(x) is not dict else x


def entries(output: Any) -> str:
    """Return what an output of several tensors is made of, for messages."""
    return f" with the entries {list(output)}" if isinstance(output, Mapping) else ""


def computing_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of sums over a network of this type: half precision is summed in float32."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
