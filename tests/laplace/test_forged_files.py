"""Made-up files with a right checksum: what loads is whole; everything else is refused at `load` by our own error."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_hostile_files import contents, write
from torch import Tensor, nn

import marquis as mq
from marquis.predictive import predict

BAD = [None, -1, 0, 10**30, 1.5, "x", True, [], {}, [["a", [1]]], [["0.weight", [-4, 3]]], float("nan")]
"""Values that a header may hold instead of the right one."""


def _longer(t: Tensor) -> Tensor:
    return torch.cat([t.reshape(-1)] * 2)


CHANGES = {
    "not a number": lambda t: t * float("nan"),
    "negative": lambda t: -t.abs() - 1,
    "whole numbers": lambda t: t.to(torch.int64),
    "bytes": lambda t: torch.zeros(3, dtype=torch.uint8),
    "truth values": lambda t: torch.zeros(t.shape, dtype=torch.bool),
    "half": lambda t: t.half(),
    "eight bits": lambda t: t.float().to(torch.float8_e4m3fn),
    "complex": lambda t: t.to(torch.complex64),
    "other precision": lambda t: t.float() if t.dtype == torch.float64 else t.double(),
    "empty": lambda t: t.new_zeros(0),
    "flat": lambda t: t.reshape(-1),
    "one more axis": lambda t: t.unsqueeze(0),
    "longer": _longer,
    "huge": lambda t: torch.full_like(t, 1e15) if t.is_floating_point() else t + 10**12,
    "shifted": lambda t: t + 1000,
    "zero": torch.zeros_like,
}
"""What may be done to a tensor; some of it leaves a file that is whole, only with other numbers."""


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).eval()


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(20, 3, generator=generator), torch.randn(20, 2, generator=generator)


@pytest.fixture(scope="module")
def files(model, data, tmp_path_factory) -> dict[str, tuple[dict, dict[str, Tensor]]]:
    """Whole files of every structure, both kinds, with every kind of prior."""
    x, y = data

    def fit(likelihood: str = "gaussian", structure: str = "full", **options: Any) -> mq.Laplace:
        labels = y.argmax(1) if likelihood == "categorical" else y
        return mq.Laplace(model, likelihood, structure, **options).fit([(x, labels)], progress=False)

    made = {name: fit(structure=name) for name in ("kronecker", "diagonal", "block", "lowrank", "full")}
    made["layers"] = fit(structure="kronecker", prior=mq.Prior(1.0, "layer"))
    made["subnetwork"] = fit(parameters=mq.Subnetwork(5, "magnitude"))
    made["continued"] = fit(prior=made["full"])
    made["single weights"] = fit(structure="diagonal", prior=mq.Prior(1.0, "parameter"))
    made["classes"] = fit("categorical", parameters="last-layer")
    path = tmp_path_factory.mktemp("whole") / "file"
    result = {}
    for name, laplace in made.items():
        for kind, saved in (("laplace", laplace), ("posterior", laplace.posterior)):
            saved.save(path)
            result[f"{name}, {kind}"] = contents(path)
    return result


def places(value: Any, before: tuple = ()) -> list[tuple]:
    """Paths to everything inside nested dictionaries and lists."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [before, *(place for key, item in inside for place in places(item, (*before, key)))]


def replaced(value: Any, place: tuple, new: Any) -> Any:
    """A copy with one thing changed."""
    if not place:
        return new
    copied = json.loads(json.dumps(value))
    inner = copied
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = new
    return copied


def refused_or_whole(path: Path, model: nn.Module, x: Tensor) -> bool:
    """Whether loading was refused by our error; if not, all that a posterior is for has to work."""
    try:
        result = mq.load(path, model)
    except mq.MarquisError:
        return True
    posterior = result if isinstance(result, mq.Posterior) else result.posterior
    posterior.sample(2)
    posterior.variance()
    posterior.log_prob(posterior.mean)
    if isinstance(result, mq.Laplace):
        repr(result)
        result.log_evidence()
        result.predict(x)
    else:
        predict(result, model, x)
    return False


@settings(
    max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(choose=st.data())
def test_one_thing_changed(files, model, data, tmp_path, choose):
    name = choose.draw(st.sampled_from(sorted(files)), "file")
    described, tensors = files[name]
    where = choose.draw(st.sampled_from(["header", "tensor", "missing", "description"]), "where")
    described, tensors = json.loads(json.dumps(described)), dict(tensors)
    if where == "header":
        place = choose.draw(st.sampled_from(places(described["header"])), "place")
        described["header"] = replaced(described["header"], place, choose.draw(st.sampled_from(BAD), "value"))
    elif where == "description":
        key = choose.draw(st.sampled_from([key for key, t in tensors.items() if t.dtype == torch.uint8]), "tensor")
        text = json.loads(bytes(tensors[key].tolist()).decode())
        text = replaced(text, choose.draw(st.sampled_from(places(text))), choose.draw(st.sampled_from(BAD), "value"))
        tensors[key] = torch.tensor(list(json.dumps(text).encode()), dtype=torch.uint8)
    else:
        key = choose.draw(st.sampled_from(sorted(tensors)), "tensor")
        if where == "missing":
            del tensors[key]
        else:
            change = choose.draw(st.sampled_from(sorted(CHANGES)), "change")
            tensors[key] = CHANGES[change](tensors[key]).contiguous()
    path = write(tmp_path / "made-up", described, tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of jitter: a matrix that is nearly singular
        refused_or_whole(path, model, data[0])


def test_unchanged_files_load(files, model, data, tmp_path):
    for described, tensors in files.values():
        assert not refused_or_whole(write(tmp_path / "whole", described, tensors), model, data[0])


@pytest.mark.parametrize(
    ("file", "tensor", "change"),
    [
        ("full, laplace", "prior.precision", "negative"),
        ("full, laplace", "prior.precision", "not a number"),
        ("full, laplace", "prior.precision", "zero"),
        ("full, laplace", "prior.mean", "longer"),
        ("layers, laplace", "prior.index", "shifted"),
        ("layers, laplace", "prior.index", "negative"),
        ("full, laplace", "mean.0.weight", "not a number"),
        ("full, laplace", "mean.0.weight", "whole numbers"),
        ("full, laplace", "mean.0.weight", "flat"),
        ("full, laplace", "mean.0.weight", "other precision"),
        ("full, posterior", "mean.0.weight", "other precision"),
        ("full, laplace", "sse", "negative"),
        ("full, laplace", "sse", "one more axis"),
        ("diagonal, laplace", "curvature.values", "negative"),
        ("diagonal, posterior", "precision.values", "negative"),
        ("subnetwork, laplace", "index", "shifted"),
        ("subnetwork, posterior", "index", "zero"),
        ("continued, laplace", "prior.structure.matrix", "negative"),
        ("continued, laplace", "prior.structure.matrix", "zero"),
    ],
)
def test_refused_when_loaded(files, model, data, tmp_path, file, tensor, change):
    described, tensors = files[file]
    forged = {**tensors, tensor: CHANGES[change](tensors[tensor]).contiguous()}
    assert refused_or_whole(write(tmp_path / "made-up", described, forged), model, data[0])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", True),
        ("temperature", "1.0"),
        ("temperature", -1.0),
        ("noise_tuned", 1),
        ("structure", "diagonal"),
        ("estimator", "guess"),
        ("groups", [1]),
        ("groups", "all"),
        ("statistics", {"n": 0, "observed": 40}),
        ("statistics", {"n": 20.0, "observed": 40}),
        ("statistics", None),
        ("likelihood", {"kind": "bernoulli"}),
        ("layout", [["0.weight", [4, 3]], ["0.weight", [4, 3]]]),
    ],
)
def test_header_fields_of_the_wrong_kind(files, model, data, tmp_path, key, value):
    described, tensors = files["full, laplace"]
    forged = {**described, "header": {**described["header"], key: value}}
    assert refused_or_whole(write(tmp_path / "made-up", forged, tensors), model, data[0])


def test_a_tensor_that_nothing_reads(files, model, data, tmp_path):
    described, tensors = files["full, laplace"]
    assert refused_or_whole(write(tmp_path / "more", described, {**tensors, "extra": torch.ones(2)}), model, data[0])
