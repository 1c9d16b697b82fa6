"""Every wrapper gives the module's own curvature, predictions, names and files."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

import marquis as mq
from marquis.curvature import ggn, operator
from marquis.errors import UnsupportedOperationError
from marquis.functional.selection import parameters_of
from marquis.functional.unwrap import unwrap

warnings.filterwarnings("ignore", module="lightning")


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype).eval()


def data(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64).to(dtype)
    return [(x[:8], torch.arange(8) % 2), (x[8:], torch.arange(4) % 2)]


def averaged(model):
    return torch.optim.swa_utils.AveragedModel(model).eval()


def checkpointed(model):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    return nn.Sequential(checkpoint_wrapper(model[0]), model[1], model[2]).eval()


def fabric(model):
    from lightning.fabric import Fabric

    return Fabric(accelerator="cpu", devices=1).setup(model)


def inner_compiled(model):
    return nn.Sequential(torch.compile(model[0]), model[1], torch.compile(model[2])).eval()


WRAPPERS = {
    "data parallel": nn.DataParallel,
    "compiled": torch.compile,
    "compiled in place": lambda model: (model.compile(), model)[1],
    "compiled inside": inner_compiled,
    "averaged": averaged,
    "checkpoint wrapper": checkpointed,
    "fabric": fabric,
    "data parallel of compiled": lambda model: nn.DataParallel(torch.compile(model)),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_wrapped_network_is_the_network_inside(wrap, tmp_path):
    plain, wrapped = network(), wrap(network())
    assert list(parameters_of(wrapped)) == list(parameters_of(plain))
    prior = mq.Prior(groups="layer")
    expected = mq.Laplace(plain, "categorical", prior=prior).fit(data(), progress=False)
    la = mq.Laplace(wrapped, "categorical", prior=prior).fit(data(), progress=False)
    torch.testing.assert_close(la.curvature.to_dense(), expected.curvature.to_dense())
    la.tune()
    expected.tune()
    torch.testing.assert_close(la.prior.precision, expected.prior.precision)
    x = data()[0][0]
    for method in ("linearised", "sampled"):
        ours, theirs = (
            model.predict(x, method, samples=3, generator=torch.Generator().manual_seed(2)) for model in (la, expected)
        )
        torch.testing.assert_close(ours.probs, theirs.probs)
    last = mq.Laplace(wrapped, "categorical", parameters="2.*").fit(data(), progress=False)
    assert last.posterior.layout.names == ("2.weight", "2.bias")
    torch.testing.assert_close(la.predict(x, at="0").mean, plain[0](x).detach())
    # A file written with the wrapper is read without it, and the other way round.
    la.save(tmp_path / "wrapped.mq")
    again = mq.load(tmp_path / "wrapped.mq", plain)
    torch.testing.assert_close(again.predict(x).probs, expected.predict(x).probs)
    expected.save(tmp_path / "plain.mq")
    torch.testing.assert_close(mq.load(tmp_path / "plain.mq", wrapped).predict(x).probs, expected.predict(x).probs)
    operators = [operator(model, data(), "categorical") for model in (plain, wrapped)]
    vector = torch.randn(operators[0].shape[0], dtype=torch.float64)
    torch.testing.assert_close(operators[0] @ vector, operators[1] @ vector)


class Blocks(nn.Module):
    """Uses `torch.utils.checkpoint` in its forward pass."""

    def __init__(self, reentrant):
        super().__init__()
        self.first, self.second, self.reentrant = nn.Linear(3, 5), nn.Linear(5, 2), reentrant

    def forward(self, x):
        return self.second(checkpoint(lambda t: self.first(t).tanh(), x, use_reentrant=self.reentrant))


def test_activation_checkpointing_in_the_forward_pass_changes_nothing():
    plain = network()
    model = Blocks(False).double().eval()
    with torch.no_grad():
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            ours.copy_(theirs)
    la = mq.Laplace(model, "categorical").fit(data(), progress=False)
    expected = mq.Laplace(plain, "categorical").fit(data(), progress=False)
    torch.testing.assert_close(la.curvature.to_dense(), expected.curvature.to_dense())
    x = data()[0][0]
    torch.testing.assert_close(la.predict(x).variance, expected.predict(x).variance)


def test_parametrised_weights_are_differentiated_in_their_originals():
    model = network()
    parametrizations.weight_norm(model[0])
    dense = ggn(model, data()[0][0], "categorical", structure="full")
    names = [name for name in dense.layout.names if name.startswith("0.parametrizations")]
    assert names == ["0.parametrizations.weight.original0", "0.parametrizations.weight.original1"]
    point = {name: p.detach() for name, p in model.named_parameters()}
    x = data()[0][0]
    outputs = lambda p: torch.func.functional_call(model, p, (x,))  # noqa: E731
    jacobian = torch.func.jacrev(outputs)(point)
    rows = torch.cat([jacobian[name].flatten(2) for name in dense.layout.names], -1)
    p = outputs(point).softmax(-1)
    hessian = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    torch.testing.assert_close(dense.to_dense(), torch.einsum("noi,nop,npj->ij", rows, hessian, rows))
    assert parametrize.is_parametrized(model[0])


class Twice(nn.Module):
    """Returns what models of Hugging Face return: an object with logits and more."""

    def __init__(self, output):
        super().__init__()
        self.inner, self.output = network(), output

    def forward(self, inputs, scale=None):
        logits = self.inner(inputs if scale is None else inputs * scale)
        return self.output(logits, inputs)


def test_the_logits_of_an_output_object_are_taken():
    from types import SimpleNamespace

    x, expected = data()[0][0], network()
    for output in (
        lambda logits, inputs: {"logits": logits, "hidden_states": inputs},
        lambda logits, inputs: SimpleNamespace(logits=logits),
        lambda logits, inputs: {"prediction": logits},
    ):
        model = Twice(output).eval()
        batches = [{"inputs": inputs, "scale": torch.ones_like(inputs), "labels": y} for inputs, y in data()]
        la = mq.Laplace(model, "categorical").fit(batches, progress=False)
        plain = mq.Laplace(expected, "categorical").fit(data(), progress=False)
        torch.testing.assert_close(la.curvature.diagonal(), plain.curvature.diagonal())
        torch.testing.assert_close(la.predict({"inputs": x}).probs, plain.predict(x).probs)
    several = Twice(lambda logits, inputs: {"a": logits, "b": inputs}).eval()
    with pytest.raises(UnsupportedOperationError, match=r"'a', 'b'"):
        ggn(several, {"inputs": x}, "categorical")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_networks_are_summed_in_float32(dtype, tmp_path):
    model, reference = network(dtype), network(dtype).double()
    batches, wide = data(dtype), [(x.double(), y) for x, y in data(dtype)]
    for structure in ("diagonal", "kronecker", "full", "block", "lowrank"):
        la = mq.Laplace(model, "categorical", structure, "exact").fit(batches, progress=False)
        expected = mq.Laplace(reference, "categorical", structure, "exact").fit(wide, progress=False)
        assert la.curvature.dtype == torch.float32
        scale = expected.curvature.diagonal().max()
        assert (la.curvature.diagonal() - expected.curvature.diagonal()).abs().max() < 0.02 * scale
        la.tune()
        x = batches[0][0]
        prediction = la.predict(x)
        assert prediction.mean.dtype == torch.float32
        torch.testing.assert_close(prediction.mean, model(x).float())
        assert la.predict(x, "sampled", samples=3).probs.isfinite().all()
        la.save(tmp_path / "half.mq")
        torch.testing.assert_close(mq.load(tmp_path / "half.mq", model).predict(x).variance, prediction.variance)
    for estimator in ("sketched", "approximate", "mixed"):
        part = ggn(model, batches[0][0], "categorical", "diagonal", estimator)
        assert part.dtype == torch.float32 and bool((part.diagonal() >= 0).all())
    product = operator(model, batches, "categorical")
    dense = operator(reference, wide, "categorical")
    vector = torch.randn(product.shape[0])
    torch.testing.assert_close((product @ vector).double(), dense @ vector.double(), rtol=0.05, atol=0.05)


def test_many_terms_in_half_precision_do_not_stop_the_sum():
    """In bfloat16 a sum stops growing at 256 equal terms; ours goes on."""
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16).eval()
    la = ggn(model, torch.ones(3000, 1, dtype=torch.bfloat16), "gaussian", "full")
    assert float(la.to_dense()) == pytest.approx(3000)


def test_what_cannot_work_is_refused_by_name():
    class FullyShardedDataParallel(nn.Module):
        __module__ = "torch.distributed.fsdp"

    with pytest.raises(UnsupportedOperationError, match=r"FullyShardedDataParallel .*fully_shard"):
        unwrap(FullyShardedDataParallel())


def test_lora_of_peft_has_the_names_of_the_network_inside(tmp_path):
    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    adapted = peft.get_peft_model(network(), peft.LoraConfig(r=2, target_modules=["0", "2"], init_lora_weights=False))
    adapted = adapted.double().eval()
    la = mq.Laplace(adapted, "categorical", "full").fit(data(), progress=False)
    names = la.posterior.layout.names
    assert names[0] == "0.lora_A.default.weight" and all("lora" in name for name in names)
    x = data()[0][0]
    point = {name: p.detach() for name, p in adapted.named_parameters() if p.requires_grad}
    outputs = lambda p: torch.func.functional_call(adapted, p, (x,))  # noqa: E731
    rows = torch.cat([j.flatten(2) for j in torch.func.jacrev(outputs)(point).values()], -1)
    expected = torch.einsum("noi,ij,npj->nop", rows, torch.linalg.inv(la.posterior.precision.to_dense()), rows)
    torch.testing.assert_close(la.predict(x).covariance, expected)
    la.save(tmp_path / "lora.mq")
    assert mq.load(tmp_path / "lora.mq", copy.deepcopy(adapted)).posterior.layout.names == names


def test_a_transformer_of_hugging_face_with_dictionary_batches():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(4)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12, num_labels=3
    )
    model = transformers.BertForSequenceClassification(config).eval()
    tokens, mask = torch.randint(30, (6, 5)), torch.ones(6, 5, dtype=torch.long)
    mask[::2, 3:] = 0
    loader = [{"input_ids": tokens, "attention_mask": mask, "labels": torch.arange(6) % 3}]
    la = mq.Laplace(model, "categorical", parameters="last-layer", structure="full").fit(loader, progress=False)
    assert la.posterior.layout.names == ("classifier.weight", "classifier.bias")
    inputs = transformers.BatchEncoding({"input_ids": tokens, "attention_mask": mask})
    prediction = la.predict(inputs)
    torch.testing.assert_close(prediction.mean, model(**inputs).logits.detach())
    everything = mq.Laplace(model, "categorical", "diagonal").fit(loader, progress=False)
    assert everything.predict(inputs).variance.shape == (6, 3)
    sampled = lambda: everything.predict(inputs, "linearised-samples", 3, generator=torch.Generator().manual_seed(0))  # noqa: E731
    expected = sampled().variance
    model.gradient_checkpointing_enable()
    torch.testing.assert_close(sampled().variance, expected)
    checkpointed = ggn(model, dict(inputs), "categorical", parameters="classifier.*")
    torch.testing.assert_close(checkpointed.diagonal(), la.curvature.diagonal())


def test_a_language_model_of_hugging_face_with_its_cache():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(5)
    config = transformers.GPT2Config(vocab_size=17, n_positions=8, n_embd=8, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel(config).double().eval()
    tokens = {"input_ids": torch.randint(17, (3, 4))}
    names = [name for name, _ in model.named_parameters() if "h.1.attn" in name]
    ours = ggn(model, tokens, mq.Categorical(-1), "diagonal", parameters=names).diagonal()
    point = {name: p.detach() for name, p in model.named_parameters() if name in names}
    outputs = lambda p: torch.func.functional_call(model, p, (), {**tokens, "use_cache": False}).logits  # noqa: E731
    rows = torch.cat([j.flatten(3) for j in torch.func.jacrev(outputs)(point).values()], -1)
    p = outputs(point).softmax(-1)
    hessian = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    torch.testing.assert_close(ours, torch.einsum("ntoi,ntop,ntpi->i", rows, hessian, rows))
