"""Plans against what the engine then does: columns, bottlenecks, chunks, bytes, and how each parameter is treated."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import marquis as mq
from marquis.curvature import Plan, ggn, plan
from marquis.curvature.backward.output_roots import SquareRoot
from marquis.curvature.backward.walk import BackwardWalk
from marquis.curvature.planning.coverage import UNUSED, LayerPlan
from marquis.curvature.planning.memory import AllocationMeter
from marquis.curvature.planning.support import support_table
from marquis.errors import DataError, UnsupportedOperationError
from marquis.structures import Kronecker

KINDS = ("diagonal", "kronecker", "block", "full", "lowrank")
walk_module = sys.modules["marquis.curvature.backward.walk"]


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(randn(4, 5))
        self.scale = nn.Parameter(randn(5, seed=1))
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((self.scale * torch.einsum("ni,io->no", x, self.w)).tanh())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(4, 5, batch_first=True)
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cell(x)[0][:, -1])


class Tied(nn.Module):
    """An autoencoder whose decoder is the encoder's transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(randn(3, 6))
        self.shift = nn.Parameter(randn(6, seed=1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.w.t()) @ self.w + self.shift


class Detached(nn.Module):
    """One branch is cut off, one layer is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.cut, self.forgotten = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x) + self.cut(x).detach()


def autoencoder() -> nn.Module:
    sides = [nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 2), nn.Tanh(), nn.Linear(2, 40), nn.Tanh(), nn.Linear(40, 20)]
    return nn.Sequential(*sides)


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.ConvTranspose2d(4, 1, 3, padding=1),
    )


CASES: dict[str, tuple[Any, Tensor]] = {
    "autoencoder": (autoencoder, randn(7, 20)),
    "convolutional": (convolutional, randn(7, 1, 16, 16)),
    "einsum": (Einsum, randn(7, 4)),
    "recurrent": (Recurrent, randn(7, 6, 4)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), randn(7, 5, 8)),
}


@pytest.fixture(scope="module")
def networks() -> dict[str, tuple[nn.Module, Tensor]]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return {name: (make().eval(), x) for name, (make, x) in CASES.items()}


def layer(made: Plan, name: str) -> LayerPlan:
    return next(layer for layer in made.layers if layer.name == name)


@pytest.mark.parametrize("structure", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_columns_cuts_chunks_and_bytes_are_those_of_the_engine(name: str, structure: str, networks: Any):
    model, x = networks[name]
    made = plan(model, x, "gaussian", structure)
    starts: list[SquareRoot] = []
    cuts: list[tuple[int, int]] = []
    chunks: list[int] = []
    segment, chunk, chosen = BackwardWalk._segment, BackwardWalk._chunk, walk_module.chosen_bottlenecks

    def spy_segment(self: BackwardWalk, root: SquareRoot, *rest: Any) -> SquareRoot:
        starts.append(root)
        return segment(self, root, *rest)

    def spy_chunk(self: BackwardWalk, steps: Any, source: int, start: Any, cut: Any) -> Any:
        chunks.append(start.count)
        return chunk(self, steps, source, start, cut)

    def spy_cuts(*args: Any) -> Any:
        result = chosen(*args)
        cuts.extend((cut.value, cut.width) for cut in result)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BackwardWalk, "_segment", spy_segment)
        patch.setattr(BackwardWalk, "_chunk", spy_chunk)
        patch.setattr(walk_module, "chosen_bottlenecks", spy_cuts)
        with AllocationMeter() as meter:
            result = ggn(model, x, "gaussian", structure)
    assert made.result_bytes == result.nbytes
    assert made.columns == starts[0].count
    assert [s.columns for s in made.segments] == [root.count for root in starts]
    assert [c.after for c in made.recompressions] == [width for _, width in cuts]
    assert sum(s.chunks for s in made.segments) == len(chunks)
    assert {s.chunk for s in made.segments} <= set(chunks)
    if isinstance(result, Kronecker):
        assert {entry.name: entry.kept for entry in made.layers} == result.report()
    assert 0.6 * meter.peak <= made.total_bytes <= 2.5 * meter.peak + 10_000


def test_a_bottleneck_is_named(networks: Any):
    made = plan(*networks["autoencoder"], "gaussian")
    (cut,) = made.recompressions
    assert (cut.before, cut.after, cut.module) == (20, 2, "3")
    assert [layer(made, f"{i}.weight").columns for i in (0, 2, 4, 6)] == [2, 2, 20, 20]
    assert plan(*networks["autoencoder"], "gaussian", "full").recompressions == ()


def test_a_picture_is_cut_into_tiles(networks: Any):
    made = plan(*networks["convolutional"], "gaussian")
    (segment,) = made.segments
    assert segment.tile is not None
    assert segment.chunk == torch.Size(segment.tile).numel()
    assert segment.chunk * segment.chunks == made.columns == 256


def test_sketched_has_as_many_columns_as_probes(networks: Any):
    model, x = networks["autoencoder"]
    made = plan(model, x, "gaussian", estimator="sketched", probes=3)
    assert made.columns == layer(made, "4.weight").columns == 3
    assert made.total_bytes < plan(model, x, "gaussian").total_bytes


@pytest.mark.parametrize(
    ("name", "parameter", "treatment", "operation", "module"),
    [
        ("autoencoder", "0.weight", "linear rule", "linear", "0"),
        ("convolutional", "0.bias", "conv2d rule", "conv2d", "0"),
        ("convolutional", "1.weight", "batch_norm rule", "batch_norm", "1"),
        ("convolutional", "5.weight", "conv_transpose2d rule", "conv_transpose2d", "5"),
        ("attention", "self_attn.in_proj_weight", "linear rule", "linear", "self_attn"),
        ("attention", "norm1.weight", "layer_norm rule", "layer_norm", "norm1"),
        ("einsum", "w", "exact fall-back (slow)", "einsum", ""),
        ("einsum", "scale", "elementwise rule", "mul", ""),
        ("recurrent", "cell.weight_hh_l0", "exact fall-back (slow)", "lstm", "cell"),
    ],
)
def test_how_parameters_are_treated(
    name: str, parameter: str, treatment: str, operation: str, module: str, networks: Any
):
    made = plan(*networks[name], "gaussian", "kronecker")
    result = layer(made, parameter)
    assert (result.treatment, result.operation, result.module) == (treatment, operation, module)
    assert result.shape == tuple(dict(networks[name][0].named_parameters())[parameter].shape)
    slow = "fall-back" in treatment
    assert any(f"'{parameter}'" in note and f"`{operation}`" in note for note in made.notes) == slow


def test_a_tied_weight():
    model, x = Tied().eval(), randn(5, 6)
    made = plan(model, x, "gaussian")
    assert layer(made, "w").uses == 2
    assert layer(made, "w").treatment == "matmul rule, matmul rule, transposed"
    assert layer(made, "shift").uses == 1
    with pytest.raises(UnsupportedOperationError, match="'w' is used 2 times") as planned:
        plan(model, x, "gaussian", "kronecker")
    with pytest.raises(UnsupportedOperationError) as computed:
        ggn(model, x, "gaussian", "kronecker")
    assert str(planned.value) == str(computed.value)
    assert any("cross terms" in note for note in plan(model, x, "gaussian", estimator="approximate").notes)


def test_a_derived_weight():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.Tanh(), nn.Linear(3, 2)).eval()
    made = plan(model, randn(5, 4), "gaussian")
    names = [entry.name for entry in made.layers if entry.treatment.startswith("derived weight")]
    assert len(names) == 2
    assert all("original" in name for name in names)


@pytest.mark.parametrize("estimator", ["exact", "sketched", "approximate", "mixed"])
def test_unused_and_frozen_parameters(estimator: str):
    model, x = Detached().eval(), randn(5, 4)
    made = plan(model, x, "gaussian", estimator=estimator)
    unused = {entry.name for entry in made.layers if entry.treatment == UNUSED}
    assert unused == {"cut.weight", "cut.bias", "forgotten.weight", "forgotten.bias"}
    diagonal = ggn(model, x, "gaussian", estimator=estimator)
    by_name = diagonal.layout.unflatten(diagonal.diagonal())
    assert unused == {name for name, value in by_name.items() if not value.any()}
    assert any("does not depend on 'cut.weight', 'cut.bias'" in note for note in made.notes)
    model.used.bias.requires_grad_(False)
    made = plan(model, x, "gaussian", estimator=estimator)
    assert "used.bias" not in [entry.name for entry in made.layers]
    assert "Frozen or not selected, so not differentiated: 'used.bias'." in made.notes


def test_approximate_and_mixed(networks: Any):
    model, x = networks["autoencoder"]
    made = plan(model, x, "gaussian", estimator="approximate")
    assert made.columns == 1
    assert {entry.treatment for entry in made.layers} == {"squared rule"}
    assert made.result_bytes == ggn(model, x, "gaussian", estimator="approximate").nbytes
    made = plan(model, x, "gaussian", estimator="mixed", width_limit=30)
    narrow = {entry.name for entry in made.layers if entry.treatment == "linear rule"}
    assert narrow == {"2.weight", "2.bias", "6.weight", "6.bias"}
    for entry in made.layers:
        assert entry.name in narrow or entry.treatment == "squared rule"
    for estimator in ("approximate", "mixed"):
        with pytest.raises(UnsupportedOperationError, match="`lstm` in module 'cell' has no rule"):
            plan(*networks["recurrent"], "gaussian", estimator=estimator, width_limit=1)


def test_nothing_large_is_allocated_and_no_limit_is_exceeded(networks: Any):
    model, _ = networks["convolutional"]
    x = torch.zeros(1, 1, 128, 128).expand(10**6, -1, -1, -1)  # half a terabyte of activations, no input to speak of
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made = plan(model, x, "gaussian")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 3 * 10**5  # kB
    assert made.forward_bytes > 5 * 10**11
    assert not made.fits
    assert made.columns == 128 * 128
    full = plan(model, x[:2], "gaussian", "full", memory_limit=10**4)
    assert not full.fits
    assert full.available_bytes == 10**4
    with pytest.raises(mq.MemoryBudgetError):
        ggn(model, x[:2], "gaussian", "full", memory_limit=10**4)


def test_the_printed_table(networks: Any):
    made = plan(*networks["recurrent"], "gaussian", "kronecker")
    lines = str(made).splitlines()
    assert max(map(len, lines)) <= 100
    header = next(line for line in lines if line.startswith("parameter"))
    assert header.split() == ["parameter", "shape", "treated", "by", "module", "kept", "as", "cols", "uses"]
    row = next(line for line in lines if line.startswith("cell.weight_hh_l0"))
    assert row.split() == [
        "cell.weight_hh_l0",
        *["20", "x", "5", "exact", "fall-back", "(slow)", "cell", "diagonal", "3", "1"],
    ]
    assert "no rule for `lstm`" in str(made)
    assert "recompressed at `tanh` in '3': 20 -> 2 columns" in str(plan(*networks["autoencoder"], "gaussian"))
    assert "does NOT fit" in str(plan(*networks["recurrent"], "gaussian", memory_limit=1))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"structure": "diagnal"}, UnsupportedOperationError, "'diagnal' is not known"),
        ({"estimator": "fast"}, UnsupportedOperationError, "'fast' is not known"),
        ({"structure": "full", "estimator": "mixed"}, UnsupportedOperationError, "only the diagonal"),
        ({"estimator": "sketched", "probes": 0}, DataError, "at least one random column"),
        ({"x": torch.zeros(0, 20)}, DataError, "empty"),
    ],
)
def test_what_is_refused(options: dict[str, Any], error: type[Exception], message: str, networks: Any):
    model, x = networks["autoencoder"]
    arguments = {"x": x, "likelihood": "gaussian", **options}
    with pytest.raises(error, match=message):
        plan(model, **arguments)
    with pytest.raises(error, match=message):
        ggn(model, **arguments)


def test_planning_changes_nothing(networks: Any):
    model, x = networks["convolutional"]
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    expected = ggn(model, x, "gaussian", "kronecker").to_dense()
    plan(model, x, "gaussian", "kronecker")
    plan(model, x, "gaussian", estimator="sketched")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert torch.equal(ggn(model, x, "gaussian", "kronecker").to_dense(), expected)


def test_the_support_page_is_generated(repository: Path):
    page = (repository / "docs/support.md").read_text(encoding="utf-8")
    assert page == support_table(), "run: python -m marquis.curvature.planning.support > docs/support.md"
