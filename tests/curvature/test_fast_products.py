"""Products by oneDNN, correlations for patches, and groups for samples equal the plain way to rounding."""

import copy

import pytest
import torch
from torch import Tensor, nn

from marquis.curvature import ggn
from marquis.curvature.graph.capture import capture
from marquis.curvature.ops import patches as patches_module
from marquis.curvature.ops.patches import ConvolutionGeometry, patch_products, unfold, unfolder
from marquis.curvature.ops.pooling import max_pool_with_positions
from marquis.functional import matmul as products
from marquis.functional.call import call
from marquis.functional.matmul import LARGE, by_sample, matmul

CONVOLUTIONS = {
    "stride and bias": (nn.Sequential(nn.Conv2d(3, 5, 3, 2, 1), nn.Tanh(), nn.Flatten()), (6, 3, 9, 11)),
    "dilation": (nn.Sequential(nn.Conv2d(5, 4, 3, dilation=2, padding=1), nn.Flatten()), (4, 5, 9, 7)),
    "one sample": (nn.Sequential(nn.Conv1d(2, 5, 4, padding=1), nn.Tanh(), nn.Flatten()), (1, 2, 17)),
    "three dimensions": (nn.Sequential(nn.Conv3d(2, 4, (3, 2, 3), padding=(1, 0, 1)), nn.Flatten()), (3, 2, 5, 6, 4)),
}


def relative(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, in units of the largest expected entry."""
    return float((found.detach().double() - expected.detach()).abs().max() / expected.detach().abs().max())


@pytest.fixture(params=["Intel's processor", "another maker's processor"], autouse=True)
def maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Pretend to run on either; returns whether it is Intel's."""
    intel = request.param.startswith("Intel")
    monkeypatch.setattr(products, "_made_by_intel", lambda: intel)
    return intel


def test_large_products_leave_mkl_to_intels_processors(maker: bool):
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    assert products._one_dnn_takes(torch.ones(2, 2), torch.ones(2, 2)) != maker


@pytest.mark.parametrize("transposed", [False, True])
def test_a_large_product_equals_that_in_double_precision(transposed: bool):
    a = torch.randn(2, 70, 301)
    b = torch.randn(207, 301).t() if transposed else torch.randn(301, 207)
    assert a.numel() * b.shape[1] >= LARGE
    assert relative(matmul(a, b), a.double() @ b.double()) < 2e-6


def test_a_product_that_is_differentiated_keeps_its_graph():
    a, b = torch.randn(130, 301, requires_grad=True), torch.randn(301, 207)
    (gradient,) = torch.autograd.grad(matmul(a, b).sum(), a)
    torch.testing.assert_close(gradient, b.sum(1).expand(130, 301))


def layer() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs with positions, weight and bias of a layer that is large enough for oneDNN."""
    generator = torch.Generator().manual_seed(3)
    x, weight, bias = (torch.randn(*size, generator=generator) for size in ((4, 33, 120), (140, 120), (140,)))
    return x, weight, bias


def oracle(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The layer in double precision."""
    return torch.einsum("bti,oi->bto", x.double(), weight.double()) + bias.double()


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_layer_and_its_gradients_equal_those_in_double_precision(with_bias: bool):
    x, weight, bias = layer()
    assert x.numel() * len(weight) >= LARGE
    leaves = [t.clone().requires_grad_() for t in ((x, weight, bias) if with_bias else (x, weight))]
    exact = [t.double().detach().requires_grad_() for t in leaves]
    y, z = products.linear(*leaves), oracle(*exact, *(() if with_bias else (torch.zeros(140),)))
    assert relative(y, z) < 2e-6
    for found, expected in zip(
        torch.autograd.grad(y.sin().sum(), leaves), torch.autograd.grad(z.sin().sum(), exact), strict=True
    ):
        assert relative(found, expected) < 5e-6


def test_a_layer_has_second_derivatives_tangents_and_batches_of_gradients():
    x, weight, bias = layer()
    leaf, exact = weight.clone().requires_grad_(), weight.double().requires_grad_()

    def second(value: Tensor, at: Tensor) -> Tensor:
        (first,) = torch.autograd.grad(value.pow(3).sum(), at, create_graph=True)
        return torch.autograd.grad(first.square().sum(), at)[0]

    assert relative(second(products.linear(x, leaf, bias), leaf), second(oracle(x, exact, bias), exact)) < 2e-5
    tangent = torch.randn_like(weight)
    change = torch.func.jvp(lambda w: products.linear(x, w, bias), (weight,), (tangent,))[1]
    assert relative(change, oracle(x, tangent, torch.zeros(140))) < 5e-6
    with torch.autograd.forward_ad.dual_level():
        dual = products.linear(x, torch.autograd.forward_ad.make_dual(weight, tangent), bias)
        after = torch.autograd.forward_ad.unpack_dual(dual).tangent
        assert after is not None and relative(after, change.double()) < 5e-6
    stacked = torch.vmap(lambda w: products.linear(x, w, bias))(torch.stack([weight, tangent]))
    assert relative(stacked[1], oracle(x, tangent, bias)) < 5e-6
    columns = torch.randn(2, 4, 33, 140)
    (batch,) = torch.autograd.grad(products.linear(x, leaf, bias), leaf, columns, is_grads_batched=True)
    assert relative(batch, torch.einsum("cbto,bti->coi", columns.double(), x.double())) < 5e-6


def test_a_network_at_other_weights_multiplies_so_and_keeps_the_layers_of_its_user():
    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    x, weight, bias = layer()
    for kind, factor in ((nn.Linear, 1), (Doubled, 2)):
        model = nn.Sequential(kind(120, 140))
        outputs = call(model, {"0.weight": weight, "0.bias": bias}, {}, x)
        assert relative(outputs, factor * oracle(x, weight, bias)) < 2e-6
        assert type(model[0]) is kind


def test_layers_are_torchs_where_rounding_is_compared(maker: bool):
    x, weight, bias = layer()
    weight.requires_grad_()

    def made_by(result: Tensor) -> str:
        return type(result.grad_fn).__name__

    ours, torchs = made_by(products.linear(x, weight, bias)), made_by(nn.functional.linear(x, weight, bias))
    with products.plain_layers():
        assert made_by(products.linear(x, weight, bias)) == torchs
    assert (ours != torchs) != maker
    assert made_by(products.linear(x, weight, bias)) == ours


def test_a_capture_compares_like_with_like(maker: bool, monkeypatch: pytest.MonkeyPatch):
    """A gradient that is zero (the bias of attention's keys) is rounding alone, which differs between libraries."""
    shapes, run = [], products._by_one_dnn

    def noting(a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        shapes.append(tuple(weight.shape))
        return run(a, weight, bias)

    monkeypatch.setattr(products, "_by_one_dnn", noting)
    model, (x, _, _) = nn.Sequential(nn.Linear(120, 140), nn.Flatten(1)), layer()
    network = capture(model, dict(model.named_parameters()), x)
    assert not shapes
    with torch.no_grad():
        call(model, dict(model.named_parameters()), {}, x)
    assert bool(shapes) != maker
    assert network.output


def test_a_layer_is_cast_under_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert products.linear(*layer()).dtype is torch.bfloat16


@pytest.mark.parametrize("keep", [0.0, 0.75])
def test_a_product_is_added_in_place(keep: float):
    a, b = torch.randn(70, 301).t(), torch.randn(70, 107)
    assert a.numel() * b.shape[1] >= LARGE
    before = torch.randn(301, 107)
    total = before.clone() if keep else torch.full_like(before, torch.nan)
    place = total.data_ptr()
    products.add_product_(total, a, b, keep, 3.0)
    assert total.data_ptr() == place
    assert relative(total, (keep * before + 3 * a.double() @ b.double())) < 2e-6


@pytest.mark.parametrize("shared", [False, True])
def test_products_by_sample_equal_those_in_double_precision(shared: bool):
    a, b = torch.randn(1 if shared else 3, 1, 90, 196), torch.randn(3, 1, 196, 160)
    assert relative(by_sample(a, b), a.double() @ b.double()) < 2e-6


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_sketch_in_single_precision_is_the_sum_of_squared_gradients(case: str):
    torch.manual_seed(0)
    model, shape = CONVOLUTIONS[case]
    model, x = copy.deepcopy(model).eval(), torch.randn(shape)
    result = ggn(model, x, "gaussian", "diagonal", "sketched", generator=torch.Generator().manual_seed(3)).diagonal()
    wide = copy.deepcopy(model).double()
    same = ggn(wide, x.double(), "gaussian", "diagonal", "sketched", generator=torch.Generator().manual_seed(3))
    assert relative(result, same.diagonal()) < 5e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("pads", [[(2, 2), (1, 1)], [(0, 0), (0, 0)], [(1, 2), (4, 0)]])
@pytest.mark.parametrize("dilation", [[1, 1], [2, 1]])
@pytest.mark.parametrize("few", [0, 5_000, 2**20])
def test_products_of_patches_are_those_of_the_unfolded_image(
    dtype: torch.dtype, pads: list[tuple[int, int]], dilation: list[int], few: int, monkeypatch: pytest.MonkeyPatch
):
    """By a correlation with strips as convolutions, with strips as patches, and by patches alone."""
    monkeypatch.setattr(patches_module, "FEW_PATCHES", few)
    image = torch.randn(3, 8, 9, 8, dtype=dtype, generator=torch.Generator().manual_seed(0))
    geometry = ConvolutionGeometry(torch.zeros(1, 8, 3, 4), (3, 4), [1, 1], dilation, pads, [0, 0], 1, False)
    sizes = zip(image.shape[2:], pads, dilation, geometry.kernel, strict=True)
    boxes = tuple((0, size + sum(pad) - d * (k - 1)) for size, pad, d, k in sizes)
    patches = unfold(image.double(), geometry, boxes)[:, 0].flatten(0, 1)
    assert 5_000 < patches.numel() < 2**20
    result, count = patch_products(image, geometry, boxes, "expand")
    assert count == len(patches)
    assert relative(result[0], patches.t() @ patches) < (1e-12 if dtype is torch.float64 else 5e-6)
    assert torch.equal(result[0], result[0].t())


@pytest.mark.parametrize("channels", [1, 2, 12])
@pytest.mark.parametrize("groups", [1, 2])
def test_unfolded_patches_are_those_of_torch_in_either_order_of_memory(
    channels: int, groups: int, monkeypatch: pytest.MonkeyPatch
):
    """Whole lines of images with few channels are copied, and whole pixels of those with many; one sample at a time."""
    monkeypatch.setattr(patches_module, "LINES_BYTES", 1)
    monkeypatch.setattr(patches_module, "PATCH_BYTES", 1)
    channels *= groups
    image = torch.randn(5, channels, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    geometry = ConvolutionGeometry(
        torch.zeros(1, 1, 3, 2), (3, 2), [2, 1], [1, 2], [(1, 1), (2, 2)], [0, 0], groups, False
    )
    expected = torch.nn.functional.unfold(image, (3, 2), (1, 2), (1, 2), (2, 1))
    expected = expected.view(5, groups, channels // groups, 6, -1).permute(0, 1, 4, 3, 2).flatten(3)
    found = unfolder(image, geometry, ((0, 5), (0, 10)))
    assert torch.equal(found(0, 5), expected) and torch.equal(found(2, 4), expected[2:4])
    products, count = patch_products(image, geometry, ((0, 5), (0, 10)), "expand")
    rows = expected.transpose(0, 1).flatten(1, 2)
    assert count == 5 * 50
    torch.testing.assert_close(products, rows.mT @ rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [(2,), (3, 2, 1), (3, 1, 1, 2), (2, 2, 0, 1, True)])
def test_maxima_and_positions_are_torchs_with_ties_and_nan(dtype: torch.dtype, options: tuple[int, ...]):
    x = torch.randint(3, (2, 17, 9, 7), generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 3, 4, 4], x[1, 5, 0, 0], x[1, 6] = float("nan"), float("inf"), -float("inf")
    expected = torch.ops.aten.max_pool2d_with_indices(x, *((o if i == 4 else [o, o]) for i, o in enumerate(options)))
    found = max_pool_with_positions(x, *((o if i == 4 else [o, o]) for i, o in enumerate(options)))
    assert torch.equal(found[0].nan_to_num(7.5), expected[0].nan_to_num(7.5)) and torch.equal(found[1], expected[1])
    assert all(part.is_contiguous() for part in found)
    gradients = []
    for pool in (max_pool_with_positions, torch.ops.aten.max_pool2d_with_indices):
        leaf = x.clone().requires_grad_()
        maxima = pool(leaf, *((o if i == 4 else [o, o]) for i, o in enumerate(options)))[0]
        gradients.append(torch.autograd.grad(maxima, leaf, torch.ones_like(maxima))[0])
    assert torch.equal(*gradients)
