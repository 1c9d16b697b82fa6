"""The study `update-rules`: its linearised step against dense Jacobians, and a quick run."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from marquis.autoencoders import for_data
from marquis_experiments.laplacian_autoencoder.update_rules.study import NOISE, ROWS, STUDY, LinearisedStep


def test_the_linearised_step_is_the_gradient_of_the_linear_model():
    encoder, decoder = for_data((1, 3, 3), 2, 0.05, kind="dense", seed=0)
    encoder, decoder = encoder.double(), decoder.double()
    x = torch.rand(5, 1, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    model = LinearisedStep(
        encoder, decoder, num_data=50, noise_precision=NOISE, curvature_at="mean", posterior_temperature=1.0
    )
    model.loss(x, None).backward()
    online = model.online
    assert online is not None
    weights = {name: value.detach() for name, value in online.means().items()}
    gradient = {name: value.grad for name, value in online.means().items()}
    network = online.model

    def outputs(at):
        return torch.func.functional_call(network, at, (x,)).flatten(1)

    jacobian = torch.func.jacrev(outputs)(weights)
    sample = online.posterior().sample(1, torch.Generator().manual_seed(online.state.steps))
    residual = outputs(weights) - x.flatten(1)
    plain = residual.clone()
    for name, value in weights.items():
        residual += (jacobian[name].flatten(2) * (sample[name][0] - value).flatten()).sum(2)
    for name, value in weights.items():
        expected = NOISE / len(x) * torch.einsum("no,nop->p", residual, jacobian[name].flatten(2)).view_as(value)
        torch.testing.assert_close(gradient[name], expected + value / 50, rtol=1e-9, atol=1e-12)
        at_mean = NOISE / len(x) * torch.einsum("no,nop->p", plain, jacobian[name].flatten(2)).view_as(value)
        assert not torch.allclose(gradient[name], at_mean + value / 50, rtol=1e-3)  # one sample is not the mean


def test_quick_run(tmp_path: Path):
    page = STUDY.run("quick", out=tmp_path, say=lambda text: None)
    rows = json.loads((page.parent / "results.json").read_text())["rows"]
    assert {row["row"] for row in rows} == {"plain", *ROWS}
    assert not any("failed" in row for row in rows)
    by_name = {row["row"]: row for row in rows if row["temperature"] == 0.01}
    assert by_name["zero"]["error"] > 2 * by_name["lae"]["error"]  # all-zero weights are a saddle
