"""Networks by name and by shape: sizes as published, outputs of exactly the data's shape, seeds that repeat."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from marquis import Laplace
from marquis.autoencoders import EncoderDecoder, LaplacianAutoencoder, build, for_data
from marquis.errors import DataError, UnsupportedOperationError


def weights(*networks):
    return sum(p.numel() for network in networks for p in network.parameters())


def widths(network):
    return [(m.in_features, m.out_features) for m in network.modules() if isinstance(m, nn.Linear)]


def channels(network):
    return [(m.in_channels, m.out_channels) for m in network.modules() if isinstance(m, nn.Conv2d)]


def test_mnist_dense():
    encoder, decoder = build("mnist-dense", 2)
    assert widths(encoder) == [(784, 512), (512, 256), (256, 2)]
    assert widths(decoder) == [(2, 256), (256, 512), (512, 784)]
    assert [type(m).__name__ for m in encoder] == ["Flatten", "Linear", "Tanh", "Linear", "Tanh", "Linear"]
    assert [type(m).__name__ for m in decoder] == ["Linear", "Tanh", "Linear", "Tanh", "Linear", "Unflatten"]
    assert decoder(encoder(torch.rand(3, 1, 28, 28))).shape == (3, 1, 28, 28)


def test_flat_mnist_is_the_same_network():
    torch.manual_seed(0)
    x = torch.rand(3, 1, 28, 28)
    images, rows = (EncoderDecoder(*build(shape, 2, seed=1)) for shape in ("mnist-dense", (784,)))
    torch.testing.assert_close(images(x).flatten(1), rows(x.flatten(1)))


def test_fashion_has_the_published_size():
    with torch.device("meta"):  # 17 million weights, none of them real
        encoder, decoder = build("fashion-conv", 2)
        assert decoder(encoder(torch.empty(5, 1, 28, 28))).shape == (5, 1, 28, 28)
    assert weights(encoder, decoder) == 17_164_739  # docs/method/autoencoders.md#architectures: 17.16 million
    assert channels(encoder) == [(1, 64), (64, 64)]
    assert widths(encoder) == [(3136, 2048), (2048, 1024), (1024, 2)]
    assert widths(decoder) == [(2, 1024), (1024, 2048), (2048, 3136)]
    assert channels(decoder) == [(64, 64), (64, 64), (64, 1)]


def test_width_scales_hidden_layers_only():
    encoder, decoder = build("fashion-conv", 2, 1 / 8)
    assert channels(encoder) == [(1, 8), (8, 8)]
    assert widths(encoder) == [(392, 256), (256, 128), (128, 2)]
    assert decoder(encoder(torch.rand(2, 1, 28, 28))).shape == (2, 1, 28, 28)


def test_celeba():
    encoder, decoder = build("celeba-conv", 64)
    assert channels(encoder) == [(3, 32), (32, 32), (32, 64), (64, 64), (64, 64)]
    assert channels(decoder) == [(64, 64), (64, 64), (64, 32), (32, 32), (32, 3)]
    assert sum(isinstance(m, nn.MaxPool2d) for m in encoder) == 5
    z = encoder(torch.rand(2, 3, 64, 64))
    assert z.shape == (2, 64)
    assert decoder(z).shape == (2, 3, 64, 64)


@pytest.mark.parametrize("name", ["mnist-dense", "fashion-conv", "celeba-conv"])
def test_linear_at_code_and_output(name):
    """A tanh there would bound codes or pixels; scaling the last layer scales them."""
    for network in build(name, 2, 0.1):
        last = [m for m in network.modules() if isinstance(m, (nn.Linear, nn.Conv2d, nn.Tanh))][-1]
        assert not isinstance(last, nn.Tanh)


SHAPES = [(1,), (4,), (64,), (3000,), (1, 8, 8), (1, 28, 28), (3, 64, 64), (1, 15, 17), (3, 33, 21), (2, 5, 1), (4, 6)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["auto", "dense", "convolutional"])
def test_any_shape_comes_back(shape, kind):
    if kind == "convolutional" and len(shape) != 3:
        with pytest.raises(DataError, match="channels, height, width"):
            for_data(shape, 2, kind=kind)
        return
    encoder, decoder = for_data(shape, 3, 0.25, kind=kind)
    x = torch.rand(2, *shape)
    z = encoder(x)
    assert z.shape == (2, 3)
    assert decoder(z).shape == x.shape


def test_what_auto_chooses():
    for shape, convolutional in {(1, 8, 8): False, (1, 28, 28): True, (3, 16, 15): False, (30,): False}.items():
        assert bool(channels(for_data(shape, 2)[0])) is convolutional
    assert widths(for_data((1, 28, 28), 2, kind="dense")[0]) == [(784, 512), (512, 256), (256, 2)]
    assert widths(for_data((8,), 2)[0]) == [(8, 64), (64, 32), (32, 2)]


def test_no_pixel_of_an_odd_image_is_dropped():
    encoder, _ = for_data((1, 17, 19), 2, kind="convolutional", seed=0)
    x = torch.zeros(1, 1, 17, 19, requires_grad=True)
    with torch.no_grad():
        x += torch.linspace(0, 1, 17 * 19).reshape(x.shape)  # the last pixel wins its pool
    encoder(x).sum().backward()
    assert x.grad is not None
    assert x.grad[0, 0, -1].any() and x.grad[0, 0, :, -1].any()


def test_seeds():
    a, b, c = (build("mnist-dense", 2, 0.1, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(a[0][1].weight, b[0][1].weight)
    assert not torch.equal(a[0][1].weight, c[0][1].weight)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    for_data((3,), 2, seed=9)
    assert torch.equal(torch.rand(1), expected)
    torch.manual_seed(5)
    first = for_data((3,), 2)[0][0].weight
    torch.manual_seed(5)
    assert torch.equal(for_data((3,), 2)[0][0].weight, first)


@pytest.mark.parametrize("estimator", ["exact", "sketched", "approximate", "mixed"])
def test_curvature_reaches_every_weight_of_an_odd_image_network(estimator):
    network = EncoderDecoder(*for_data((1, 9, 11), 2, 0.1, kind="convolutional", seed=0)).eval()
    x = torch.rand(4, 1, 9, 11, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    laplace = Laplace(network, "gaussian", "diagonal", estimator).fit([(x, x)], generator=generator, progress=False)
    result = laplace.curvature.diagonal()
    assert result.isfinite().all() and (result >= 0).all()
    assert (result > 0).double().mean() > 0.9


def test_refusals():
    with pytest.raises(UnsupportedOperationError, match=r"mnist-dens'.*Did you mean 'mnist-dense'.*celeba-conv"):
        build("mnist-dens", 2)
    with pytest.raises(DataError, match="latent is 0"):
        build("mnist-dense", 0)
    with pytest.raises(DataError, match="width is 0"):
        for_data((3,), 2, 0)
    with pytest.raises(DataError, match="positive sizes"):
        for_data((3, 0, 2), 2)
    with pytest.raises(DataError, match="positive sizes"):
        for_data((), 2)
    with pytest.raises(UnsupportedOperationError, match="kind='deep'"):
        for_data((3,), 2, kind="deep")


def test_convolutions_are_channels_last_and_draws_stay_so():
    encoder, decoder = for_data((1, 16, 16), 2, 0.25, seed=0)
    autoencoder = EncoderDecoder(encoder, decoder).double().eval()
    own = dict(autoencoder.named_parameters())
    convolutions = [name for name, value in own.items() if value.dim() == 4]
    assert all(own[name].is_contiguous(memory_format=torch.channels_last) for name in convolutions)
    assert any(not own[name].is_contiguous() for name in convolutions)

    made = LaplacianAutoencoder(encoder, decoder, num_data=10, posterior_temperature=1e-30).online
    drawn = made.draw(torch.Generator().manual_seed(0))
    for name, value in drawn.items():
        assert value.stride() == own[name].stride(), name
        torch.testing.assert_close(value, own[name].detach())

    x = torch.rand(3, 1, 16, 16, dtype=torch.float64)
    here = decoder(encoder(x))
    rows_first = [network.to(memory_format=torch.contiguous_format) for network in (encoder, decoder)]
    assert all(p.is_contiguous() for network in rows_first for p in network.parameters())
    torch.testing.assert_close(rows_first[1](rows_first[0](x)), here, rtol=1e-12, atol=1e-14)
