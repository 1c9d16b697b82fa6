"""Every front door takes wrapped networks, and gives the numbers of the network inside."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, weight_norm

import marquis as mq
from functional.test_unwrap import Blocks, checkpointed, data, fabric, network
from marquis.curvature import hessian, operator
from marquis.evidence import train
from marquis.variational import MAP, MeanFieldVI, VariationalLaplace

warnings.filterwarnings("ignore", module="lightning")
X, Y = data()[0]


def seeded():
    return torch.Generator().manual_seed(1)


def flat(weights):
    return torch.cat([value.detach().flatten(1) for value in weights.values()], 1)


def fitted(model, structure="full", **options):
    return mq.Laplace(model, "categorical", structure, **options).fit(data(), progress=False)


def stepped(method):
    """Returns the loss after a step of training, so that gradients count."""
    optimiser = torch.optim.SGD(method.parameters(), 0.01)
    method.step(X, Y).backward()
    optimiser.step()
    return method.step(X, Y).detach()


def online(model, structure):
    learner = mq.OnlineLaplace(model, "categorical", structure, num_data=12, generator=seeded())
    losses = []
    for x, y in data():
        loss = learner.step(x, y)
        loss.backward()
        losses.append(loss.detach())
    return torch.cat([torch.stack(losses), learner.posterior().precision.diagonal()])


def continued(model):
    before = mq.Laplace(model, "categorical").fit(data()[:1], progress=False)
    after = mq.Laplace(model, "categorical").fit(data()[1:], continue_from=before, progress=False)
    return after.curvature.diagonal()


def trained(model):
    result = train(model, data(), "categorical", epochs=2, progress=False)
    return torch.cat([weight.detach().flatten() for weight in result.model.parameters()])


DOORS = {
    "hessian": lambda model: hessian(model, X, Y, "categorical").diagonal(),
    "operator": lambda model: operator(model, data(), "categorical", "hessian") @ torch.linspace(-1, 1, 32).double(),
    "check": lambda model: torch.tensor(fitted(model).check(data()).relative_gradient),
    "mean shift": lambda model: fitted(model).mean_shift(data()).gain,
    "linearised samples": lambda model: fitted(model).predict(X, "linearised-samples", 3, generator=seeded()).probs,
    "adapted": lambda model: fitted(model).tune("adapted", data()).prior.precision,
    "continue_from": continued,
    "swag": lambda model: fitted(model, parameters=mq.Subnetwork(4, by="swag")).curvature.to_dense(),
    "kernel": lambda model: mq.kernel(model).condition(X, "categorical").predict(X).variance,
    "lanczos": lambda model: mq.scores.sketched_lanczos(model, data(), "categorical", 5, generator=seeded()).score(X),
    "null space": lambda model: flat(
        mq.scores.null_space(model, data(), "categorical", "losses").sample(2, seeded(), tolerance=1e-3)
    ),
    "online": lambda model: online(model, "kronecker"),
    "train": trained,
    "variational": lambda model: stepped(VariationalLaplace(model, "categorical", num_data=12, generator=seeded())),
    "mean field": lambda model: stepped(MeanFieldVI(model, "categorical", num_data=12, generator=seeded())),
    "MAP": lambda model: stepped(MAP(model, "categorical", num_data=12)),
}


def checkpointing(model):
    """Returns the same network, which checkpoints its first layer by `torch.utils.checkpoint`."""
    blocks = Blocks(False).double().eval()
    with torch.no_grad():
        for ours, theirs in zip(blocks.parameters(), model.parameters(), strict=True):
            ours.copy_(theirs)
    return blocks


WRAPPERS = {
    "data parallel": nn.DataParallel,
    "compiled": torch.compile,
    "checkpoint wrapper": checkpointed,
    "torch.utils.checkpoint": checkpointing,
    "fabric": fabric,
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_gives_the_numbers_of_the_network_inside(door):
    torch.manual_seed(0)
    expected = DOORS[door](network())
    for name, wrap in WRAPPERS.items():
        torch.manual_seed(0)
        torch.testing.assert_close(
            DOORS[door](wrap(network())), expected, msg=lambda text, name=name: f"{name}: {text}"
        )


class Normalised(nn.Module):
    """Weight normalisation written out."""

    def __init__(self, layer):
        super().__init__()
        self.bias, self.magnitude, self.direction = layer.bias, layer.weight_g, layer.weight_v

    def forward(self, x):
        norm = self.direction.square().sum(1, keepdim=True).sqrt()
        return nn.functional.linear(x, self.magnitude * self.direction / norm, self.bias)


def normalised(kind):
    """Returns the network with its first weight normalised in one of three ways."""
    model = network()
    if kind == "parametrised":
        parametrizations.weight_norm(model[0])
    else:
        with pytest.warns(FutureWarning):
            model[0] = weight_norm(model[0])
        if kind == "written out":
            model[0] = Normalised(model[0])
    return model.eval()


SECOND_ORDER = ("hessian", "linearised samples", "check")


@pytest.mark.parametrize("kind", ["parametrised", "hook"])
def test_second_derivatives_of_weight_normalisation_are_right(kind):
    """Those of torch's own operation are not: see the next test."""
    for door in SECOND_ORDER:
        actual, expected = DOORS[door](normalised(kind)), DOORS[door](normalised("written out"))
        torch.testing.assert_close(actual, expected, msg=lambda text, door=door: f"{door}: {text}")


def test_torch_gets_the_second_derivative_of_its_weight_normalisation_wrong():
    """Where this fails, torch was mended, and the weight normalisation of `functional.differentiable` can go."""
    magnitude, direction = torch.tensor([[2.0]]).double(), torch.tensor([[0.6, 0.8]]).double()
    steep = lambda v: torch._weight_norm(v, magnitude, 0)[0, 0]  # noqa: E731
    plain = lambda v: (magnitude * v / v.norm())[0, 0]  # noqa: E731
    theirs, right = (torch.autograd.functional.hessian(f, direction) for f in (steep, plain))
    assert (theirs - right).abs().max() > 0.1


def test_a_parametrised_layer_is_one_group_of_the_prior():
    plain, model = network(), network()
    parametrizations.weight_norm(model[0])
    parametrizations.spectral_norm(model[2])
    priors = [fitted(m.eval(), "diagonal", prior=mq.Prior(groups="layer")).prior for m in (plain, model)]
    assert priors[0].names == priors[1].names == ("0", "2")


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile, checkpointed], ids=["parallel", "compiled", "inside"])
def test_autoencoders_of_wrapped_networks(wrap):
    def results(wrap):
        torch.manual_seed(0)
        parts = [nn.Sequential(nn.Linear(a, 5), nn.Tanh(), nn.Linear(5, b)) for a, b in ((6, 2), (2, 6))]
        model = mq.autoencoders.LaplacianAutoencoder(*map(wrap, parts), num_data=40, generator=seeded())
        x = torch.randn(8, 6, generator=seeded())
        model.loss(x, None).backward()
        posthoc = mq.autoencoders.fit_posthoc(mq.autoencoders.Autoencoder(*map(wrap, parts)), [x], progress=False)
        everyone = [model, mq.autoencoders.linearised(model), posthoc, mq.autoencoders.linearised(posthoc)]
        return [m.reconstruct(x, samples=3, generator=seeded()).variance for m in everyone]

    for actual, expected in zip(results(wrap), results(lambda part: part), strict=True):
        torch.testing.assert_close(actual, expected)


class Padded(nn.Module):
    """Embeds tokens, 0 being the padding, and uses the embedding once more for its outputs."""

    def __init__(self):
        super().__init__()
        self.embed, self.last = nn.Embedding(5, 3, padding_idx=0), nn.Linear(3, 3)
        nn.init.normal_(self.embed.weight)

    def forward(self, x):
        return self.last(self.embed(x).tanh().mean(1)) @ self.embed.weight.T


def test_a_padding_is_a_constant_in_both_modes_of_differentiation():
    torch.manual_seed(0)
    model, x = Padded().double().eval(), torch.tensor([[1, 0, 2], [0, 0, 3], [4, 1, 0]])
    products = operator(model, [(x, None)], "categorical").to_dense()
    torch.testing.assert_close(products, mq.curvature.ggn(model, x, "categorical", "full").to_dense())
    outputs = lambda weight: torch.func.functional_call(model, {"embed.weight": weight}, (x,))  # noqa: E731
    weight = model.embed.weight.detach()
    step = torch.zeros_like(weight)
    step[0, 0] = 1
    forwards, backwards = torch.func.jvp(outputs, (weight,), (step,))[1], torch.func.jacrev(outputs)(weight)[..., 0, 0]
    assert (forwards - backwards).abs().max() > 0.1  # in torch the two differ
    la = mq.Laplace(model, "categorical", "full").fit([(x, torch.arange(3))], progress=False)
    samples = la.predict(x, "linearised-samples", samples=4000, generator=seeded()).variance
    torch.testing.assert_close(samples, la.predict(x).variance, rtol=0.12, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_goes_through_every_door(dtype):
    """In comparison with the same weights in float32: up to the rounding of forward and backward passes."""
    rounded, wide = network(dtype), network(dtype).float()
    (x, y), loader = data(dtype)[0], data(dtype)
    floats = [(inputs.float(), labels) for inputs, labels in loader]

    def results(model, x, loader):
        vector = torch.linspace(-1, 1, 32)
        product = operator(model, loader, "categorical")
        yield hessian(model, x, y, "categorical").diagonal()
        yield product @ vector.to(product.dtype)
        yield mq.kernel(model).condition(x, "categorical").predict(x).variance
        yield mq.scores.sketched_lanczos(model, loader, "categorical", 5, generator=seeded()).score(x)
        yield mq.scores.null_space(model, loader, "categorical", "losses").sample(2, seeded(), tolerance=1e-3)["2.bias"]
        for structure in ("diagonal", "kronecker"):
            learner = mq.OnlineLaplace(model, "categorical", structure, num_data=12, generator=seeded())
            learner.step(x, y).backward()
            yield learner.posterior().precision.diagonal()

    for half, full in zip(results(rounded, x, loader), results(wide, x.float(), floats), strict=True):
        assert half.dtype in (torch.float32, dtype)
        torch.testing.assert_close(half.float(), full, rtol=0.1, atol=0.1 * float(full.abs().max()))
    for how in ("adapted", "sampled"):
        la = mq.Laplace(rounded, "categorical", "full").fit(loader, progress=False)
        with pytest.raises(mq.UnsupportedOperationError, match=r"float\(\)"):
            la.tune(how, loader)
