"""`Laplace.fit` reads every batch once and runs it forward once; counted, not timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

import marquis as mq
from marquis.errors import DataError
from marquis.evidence import Statistics

INPUTS, CLASSES, BATCH, BATCHES = 5, 3, 8, 4


class OwnCode(nn.Sequential):
    """A network with code of the user's own: two samples of a batch are compared with its graph, beside the pass."""

    def forward(self, x: Tensor) -> Tensor:
        return self[2](torch.tanh(self[0](x)))


class ForwardPasses(TorchDispatchMode):
    """Counts samples that pass forward; planning and capturing run without entries and do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.samples = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.tanh.default and type(args[0]) is Tensor and args[0].device.type != "meta":
            self.samples += args[0].shape[0]
        return func(*args, **(kwargs or {}))


class CountingLoader:
    """Counts how often it is opened and how many batches are read."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches, self.opened, self.read = batches, 0, 0

    def __iter__(self) -> Iterator[Any]:
        self.opened += 1
        for batch in self.batches:
            self.read += 1
            yield batch


class CountingData(Dataset[Any]):
    """Counts how often each sample is fetched, also by workers (shared memory)."""

    def __init__(self, batches: list[Any]) -> None:
        self.x, self.y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        self.fetched = torch.zeros(len(self.x), dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.fetched[index] += 1
        return self.x[index], self.y[index]


def labelled(count: int = BATCHES, classes: int = CLASSES) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(BATCH - (i == count - 1), INPUTS, generator=generator),
            torch.randint(classes, (BATCH - (i == count - 1),), generator=generator),
        )
        for i in range(count)
    ]


def network(outputs: int = CLASSES, kind: type[nn.Sequential] = nn.Sequential) -> nn.Sequential:
    """One tanh per forward pass, by which passes are counted."""
    torch.manual_seed(1)
    model = kind(nn.Linear(INPUTS, 6), nn.Tanh(), nn.Linear(6, outputs)).eval()
    mq.curvature.ggn(model, torch.randn(2, INPUTS), "categorical")  # captures the graph, which runs it several times
    return model


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "diagonal": {"structure": "diagonal", "estimator": "exact"},
    "sketched": {"structure": "full", "estimator": "sketched"},
    "approximate": {"structure": "diagonal", "estimator": "approximate"},
    "mixed": {"structure": "diagonal", "estimator": "mixed"},
    "lowrank": {"structure": "lowrank"},
    "last layer": {"parameters": "last_layer"},
    "grouped prior": {"prior": mq.Prior(groups="normalised")},
    "subnetwork": {"parameters": mq.Subnetwork(5, by="magnitude")},
    "diagonal subnetwork": {"parameters": mq.Subnetwork(5, by="magnitude", structure="diagonal")},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_every_batch_is_read_once_and_runs_forward_once(options):
    model, loader = network(), CountingLoader(labelled())
    la = mq.Laplace(model, "categorical", **options)
    with ForwardPasses() as passes:
        la.fit(loader, progress=False)
    assert (loader.opened, loader.read) == (1, BATCHES)
    assert passes.samples == sum(len(y) for _, y in loader.batches)
    expected = Statistics.gather(model, loader.batches, mq.Categorical())
    assert la.statistics is not None and la.statistics.n == expected.n
    torch.testing.assert_close(la.statistics.log_likelihood, expected.log_likelihood, rtol=1e-6, atol=0)


def test_code_of_the_users_own_costs_a_few_samples_per_batch_more():
    model, loader = network(kind=OwnCode), CountingLoader(labelled())
    with ForwardPasses() as passes:
        mq.Laplace(model, "categorical").fit(loader, progress=False)
    batches = sum(len(y) for _, y in loader.batches)
    assert batches < passes.samples <= batches + 2 * (2 + 2) * BATCHES  # graph and model, for the plan and for the pass


def test_many_outputs_choose_the_sketched_estimator_without_a_forward_pass():
    model, loader = network(80), CountingLoader(labelled(classes=80))
    with ForwardPasses() as passes:
        la = mq.Laplace(model, "categorical", "diagonal").fit(loader, progress=False)
    assert la.fitted.estimator == "sketched" and loader.opened == 1
    assert passes.samples == sum(len(y) for _, y in loader.batches)


@pytest.mark.parametrize("make", [iter, lambda batches: (batch for batch in batches)], ids=["iterator", "generator"])
def test_one_shot_iterators_are_enough(make: Callable[[list[Any]], Any]):
    model, batches = network(), labelled()
    with ForwardPasses() as passes:
        la = mq.Laplace(model, "categorical").fit(make(batches), progress=False)
    again = mq.Laplace(model, "categorical").fit(batches, progress=False)
    torch.testing.assert_close(la.posterior.precision.to_dense(), again.posterior.precision.to_dense())
    assert passes.samples == la.statistics.n == again.statistics.n  # type: ignore[union-attr]


@pytest.mark.parametrize("workers", [0, 2])
def test_every_sample_of_a_data_loader_is_fetched_once(workers):
    data = CountingData(labelled())
    la = mq.Laplace(network(), "categorical").fit(
        DataLoader(data, batch_size=BATCH, num_workers=workers), progress=False
    )
    assert data.fetched.tolist() == [1] * len(data) and la.statistics is not None


def test_ranking_by_data_takes_one_more_pass():
    loader = CountingLoader(labelled())
    mq.Laplace(network(), "categorical", parameters=mq.Subnetwork(25, by="variance")).fit(loader, progress=False)
    assert (loader.opened, loader.read) == (2, 2 * BATCHES)


def test_batches_that_are_split_still_run_forward_once():
    model, loader = network(), CountingLoader(labelled())
    with ForwardPasses() as passes:
        la = mq.Laplace(model, "categorical", "diagonal").fit(loader, memory_limit=20_000, progress=False)
    assert passes.samples == la.statistics.n == sum(len(y) for _, y in loader.batches)  # type: ignore[union-attr]


def test_a_resumed_fit_knows_the_fit_of_all_data(tmp_path):
    model, batches = network(), labelled()
    whole = mq.Laplace(model, "categorical").fit(batches, progress=False)

    def interrupted() -> Iterator[Any]:
        yield from batches[:2]
        raise KeyboardInterrupt

    la = mq.Laplace(model, "categorical")
    with pytest.raises(KeyboardInterrupt):
        la.fit(interrupted(), checkpoint=tmp_path / "sum", progress=False)
    with ForwardPasses() as passes:
        la.fit(batches, checkpoint=tmp_path / "sum", progress=False)
    assert la.statistics is not None and la.statistics.n == whole.statistics.n == passes.samples  # type: ignore[union-attr]
    torch.testing.assert_close(la.log_evidence(), whole.log_evidence())


def test_training_with_evidence_passes_once_per_update():
    loader = CountingLoader(labelled())
    trained = mq.evidence.train(network(), loader, "categorical", epochs=3, progress=False)
    assert trained.updates == 3 and loader.opened == 1 + 3 + 3  # counting the data, training, curvature and evidence


@pytest.mark.parametrize("loader", [None, 3, nn.Linear(1, 1)], ids=["None", "number", "module"])
def test_what_is_no_loader_is_refused(loader):
    with pytest.raises(DataError, match="cannot be iterated"):
        mq.Laplace(network(), "categorical").fit(loader)


def test_no_batches_are_refused():
    with pytest.raises(DataError, match="no batches"):
        mq.Laplace(network(), "categorical").fit([])
