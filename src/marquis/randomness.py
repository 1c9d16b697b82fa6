"""Sample random numbers on the generator's device, so that a seed gives the same numbers on every device of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

_SEEDS = 2**62


def device_for(generator: torch.Generator | None, otherwise: torch.device | str = "cpu") -> torch.device:
    """Return where numbers of this generator have to be sampled; without one, `otherwise`."""
    return torch.device(otherwise) if generator is None else generator.device


def normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return standard normal numbers with dtype and device of `like`."""
    device = device_for(generator, like.device)
    return torch.randn(tuple(shape), dtype=like.dtype, device=device, generator=generator).to(like.device)


def uniform(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return uniform numbers from 0 to 1 with dtype and device of `like`."""
    device = device_for(generator, like.device)
    return torch.rand(tuple(shape), dtype=like.dtype, device=device, generator=generator).to(like.device)


def permutation(n: int, generator: torch.Generator | None) -> Tensor:
    """Return a permutation of 0 to n - 1, on the CPU."""
    return torch.randperm(n, generator=generator, device=device_for(generator)).cpu()


def new_seeds(n: int, generator: torch.Generator | None) -> Tensor:
    """Return `n` seeds for generators, from this one or from torch's global one."""
    return torch.randint(_SEEDS, (n,), generator=generator, device=device_for(generator)).cpu()


def new_seed(generator: torch.Generator | None = None) -> int:
    """Return a seed for a generator, from this one or from torch's global one."""
    return int(torch.randint(_SEEDS, (), generator=generator, device=device_for(generator)))


def new_generator(device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator seeded by torch's global one."""
    return torch.Generator(device=device).manual_seed(new_seed())


@contextmanager
def seeded(seed: int | None, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seed torch's global random streams within this context and restore them afterwards; None leaves them alone.

    Those of CUDA are left alone, and CUDA is not started, unless it is in use or the `device` is one of it.
    """
    if seed is None:
        yield
        return
    cuda = torch.cuda.is_initialized() or torch.device(device).type == "cuda"
    with torch.random.fork_rng(range(torch.cuda.device_count()) if cuda else []):
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed_all(seed)
        yield
