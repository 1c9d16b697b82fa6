"""Torch's global random stream, seeded for the length of a block."""

from __future__ import annotations

import pytest
import torch

from marquis.randomness import seeded


def test_a_seed_gives_the_same_numbers_and_leaves_the_global_stream_alone():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    with seeded(3):
        first = torch.rand(4)
    with pytest.raises(ZeroDivisionError), seeded(3):
        assert torch.equal(torch.rand(4), first)
        1 / 0  # noqa: B018
    assert torch.equal(torch.get_rng_state(), before)
    with seeded(4):
        assert not torch.equal(torch.rand(4), first)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4), first)


def test_without_a_seed_the_global_stream_goes_on():
    torch.manual_seed(7)
    expected = torch.rand(4)
    torch.manual_seed(7)
    with seeded(None):
        assert torch.equal(torch.rand(4), expected)
    assert not torch.equal(torch.rand(4), expected)


def test_cuda_is_not_started_by_a_seed_for_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("CUDA was seeded"))
    with seeded(3, "cpu"):
        torch.rand(1)
