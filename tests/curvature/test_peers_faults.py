"""One regression test for each fault that was found in other libraries."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F
from oracle import assert_matches, assert_structure, built, dense_ggn, double, rows
from torch import Tensor, nn

import marquis as mq
from marquis.curvature import ggn
from networks import Net, Transformer, dense_autoencoder


@pytest.mark.parametrize("estimator", ["exact", "sketched", "approximate", "mixed"])
def test_upsampling_does_not_sum_over_channels(estimator: str) -> None:
    """The paper's code: 2044 times too large. A channel that nothing reads must have no curvature."""
    model = built(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Upsample(scale_factor=2), nn.Conv2d(2, 1, 1)))
    with torch.no_grad():
        model[2].weight[:, 1] = 0
    ours = ggn(model, double(3, 1, 4, 4), "gaussian", "diagonal", estimator).by_parameter()["0.weight"]
    assert float(ours[1].abs().max()) == 0
    assert float(ours[0].abs().min()) > 0


@pytest.mark.parametrize("estimator", ["exact", "approximate", "mixed"])
@pytest.mark.parametrize("layer", [nn.Conv2d(1, 2, 3), nn.ConvTranspose2d(1, 2, 3)])
def test_biases_of_convolutions_are_not_dropped(layer: nn.Module, estimator: str) -> None:
    """The paper's code, `exact`. For a single layer under unit noise: samples x positions."""
    model = built(nn.Sequential(layer))
    out = model(double(3, 1, 4, 5))
    ours = ggn(model, double(3, 1, 4, 5), "gaussian", "diagonal", estimator).by_parameter()["0.bias"]
    assert_matches(ours, torch.full((2,), float(3 * out.shape[2] * out.shape[3]), dtype=torch.float64))


def test_the_softmax_hessian_is_not_only_its_diagonal() -> None:
    """The paper's code, 2-D logits."""
    model, x = built(nn.Linear(3, 3)), double(4, 3)
    ours = ggn(model, x, "categorical", "full").to_dense()
    assert_matches(ours, dense_ggn(model, x, "categorical"))
    f, jacobian = rows(model, x)
    p = f.softmax(1)
    only_diagonal = torch.einsum("nop,no,noq->pq", jacobian, p - p.square(), jacobian)
    assert float((ours - only_diagonal).abs().max() / ours.abs().max()) > 0.1


def test_the_first_layer_sees_the_data_and_not_the_reconstruction() -> None:
    """The paper's code, post hoc: 97 % off."""
    model, x = built(dense_autoencoder((5, 4, 2, 4, 5))), double(3, 5)
    ours = ggn(model, x, "gaussian").by_parameter()["0.weight"]
    jacobian = rows(model, x)[1][:, :, :20]
    assert_matches(ours.flatten(), jacobian.square().sum((0, 1)))
    assert (
        float((ours.flatten() - rows(model, model(x).detach())[1][:, :, :20].square().sum((0, 1))).abs().max()) > 1e-3
    )


def test_block_curvature_can_be_inverted_and_sampled() -> None:
    """The paper's code: cannot run."""
    model, x = built(dense_autoencoder((5, 4, 2, 4, 5))), double(3, 5)
    posterior = ggn(model, x, "gaussian", "block").add_diagonal(1.0)
    v = double(posterior.to_dense().shape[0])
    assert_matches(posterior.to_dense() @ posterior.solve(v), v)
    assert posterior.sample(2, generator=torch.Generator().manual_seed(0)).shape == (2, len(v))


def test_cost_is_linear_in_the_batch() -> None:
    """laplace-torch: B² in the batch. Counted as floating-point numbers made, not as time."""
    from test_memory import Peak

    model = built(nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4)))
    peaks = []
    for batch in (64, 128):
        x = double(batch, 6)
        ggn(model, x, "categorical")
        with Peak() as counter:
            ggn(model, x, "categorical")
        peaks.append(counter.peak)
    assert peaks[1] < 2.5 * peaks[0]


def test_the_diagonal_does_not_build_batch_times_outputs_times_parameters() -> None:
    """laplace-torch: 7 TB for a diagonal."""
    from test_memory import Peak

    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)).eval()
    x = torch.randn(64, 64)
    ggn(model, x, "gaussian")
    with Peak() as counter:
        ggn(model, x, "gaussian")
    parameters = sum(p.numel() for p in model.parameters())
    assert counter.peak < 64 * 64 * parameters * 4 / 20


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ConvTranspose2d(2, 2, 3), nn.GroupNorm(1, 2)),
        nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 3)),
        nn.Sequential(
            nn.Flatten(2), nn.TransformerEncoderLayer(16, 2, 8, 0.0, batch_first=True), nn.Flatten(), nn.Linear(16, 2)
        ),
    ],
    ids=["batch norm and transposed convolution", "layer norm and GELU", "attention"],
)  # fmt: skip
def test_kronecker_works_where_others_fail(model: nn.Module) -> None:
    """laplace-torch: fails with BatchNorm, LayerNorm, transposed convolution, attention; BackPACK: LayerNorm, GELU."""
    model, x = built(model), double(3, 1, 4, 4)
    ours = ggn(model, x, "gaussian", "kronecker").diagonal()
    oracle = dense_ggn(model, x).diagonal()
    for (name, values), expected in zip(_split(ours, model).items(), _split(oracle, model).values(), strict=True):
        if "norm" in name or values.dim() == 1:
            assert_matches(values, expected)
    assert bool(torch.isfinite(ours).all())


def _split(vector: Tensor, model: nn.Module) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    parts = vector.split([p.numel() for p in named.values()])
    return {name: part.view(p.shape) for (name, p), part in zip(named.items(), parts, strict=True)}


@pytest.mark.parametrize("structure", ["diagonal", "block", "full", "lowrank", "kronecker"])
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli", "categorical"])
def test_outputs_shaped_like_images(structure: str, likelihood: str) -> None:
    """laplace-torch: fails with every structure; BackPACK: `MSELoss` takes 2-D outputs only."""
    model, x = built(nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Conv2d(2, 3, 1))), double(2, 1, 3, 4)
    ours = ggn(model, x, likelihood, structure)
    if structure != "kronecker":
        assert_structure(ours, structure, dense_ggn(model, x, likelihood), dict(model.named_parameters()))
    else:
        bias = ours.to_dense()[-3:, -3:]
        assert_matches(bias, dense_ggn(model, x, likelihood)[-3:, -3:])


def test_the_last_layer_may_be_any_layer() -> None:
    """laplace-torch: last-layer needs an nn.Linear."""
    model, x = (
        built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2))),
        double(3, 3),
    )
    ours = ggn(model, x, "gaussian", "full", parameters="3.*").to_dense()
    assert_matches(ours, dense_ggn(model, x)[16:, 16:])


def test_no_graph_is_kept_alive() -> None:
    """BackPACK: graphs kept alive until memory runs out."""
    model, x = built(Transformer()), torch.randint(0, 6, (3, 4), generator=torch.Generator().manual_seed(0))
    result = ggn(model, x, "categorical", "full")
    assert result.to_dense().grad_fn is None

    def alive() -> int:
        gc.collect()
        return sum(isinstance(o, Tensor) for o in gc.get_objects())

    del result
    before = alive()
    for _ in range(3):
        for structure in ("diagonal", "kronecker", "lowrank"):
            ggn(model, x, "categorical", structure)
    assert alive() <= before


def test_a_layer_used_twice_has_its_cross_terms() -> None:
    """curvlinops' hooks: silently wrong under weight tying."""
    model = built(Net(lambda m, x: m.l(torch.tanh(m.l(x))), l=nn.Linear(3, 3)))
    x = double(3, 3)
    ours = ggn(model, x, "gaussian").diagonal()
    assert_matches(ours, dense_ggn(model, x).diagonal())

    def separate(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return F.linear(torch.tanh(F.linear(x, p["v"], p["b"])), p["w"], p["c"])

    w, b = model.l.weight.detach(), model.l.bias.detach()
    apart = dense_ggn(separate, x, params={"v": w, "b": b, "w": w, "c": b}).diagonal()
    without = torch.cat([apart[:9] + apart[12:21], apart[9:12] + apart[21:]])
    assert float((ours - without).abs().max() / ours.abs().max()) > 1e-2


def test_restricting_happens_before_differentiating() -> None:
    """laplace-torch users: out of memory for a subnetwork, since the Jacobian is built before it is indexed."""
    from test_memory import Peak

    model = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 4)).eval()
    x = torch.randn(8, 512)
    ggn(model, x, "categorical", "full", parameters=["2.bias"])
    with Peak() as counter:
        ours = ggn(model, x, "categorical", "full", parameters=["2.bias"])
    assert ours.to_dense().shape == (4, 4)
    assert counter.peak < 512 * 512 * 4


def test_more_labels_than_anyone_enumerates() -> None:
    """Last layer with thousands of labels: the Kronecker form never holds outputs x outputs x parameters."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1000)).eval()
    x = torch.randn(4, 8)
    ours = ggn(
        model,
        x,
        "categorical",
        "kronecker",
        "sketched",
        parameters="2.weight",
        generator=torch.Generator().manual_seed(0),
    )
    assert ours.diagonal().numel() == 8000
    with pytest.raises(mq.MemoryBudgetError, match="kronecker"):
        ggn(model, x, "categorical", "full", parameters="2.weight", memory_limit=2**25)
