"""Every question of the explorer against the library's own functions, without a server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from torch import nn

from marquis.autoencoders import Autoencoder
from marquis.errors import DataError, MarquisError
from marquis.explorer import Workspace
from marquis.explorer.session import BACKGROUNDS, ORDER_POINTS, ORDER_STEPS, SAMPLES
from marquis.tasks import geometry, ood
from marquis.tasks.ranking import auroc


def test_codes_and_scores_are_those_of_the_tasks(workspace):
    session = workspace.sessions[0]
    generator = session._same.generator()
    result = session.explored.model.reconstruct(session.x, SAMPLES, generator=generator)
    np.testing.assert_allclose(session.codes, result.latent.mean.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(session.scores["nll"], -result.log_prob.numpy(), rtol=1e-4, atol=1e-3)
    parts = {name: torch.from_numpy(score) for name, score in session.scores.items()}
    expected = ood.combined(parts, session._reference)  # among training rows, not among those shown
    np.testing.assert_allclose(session.scores["combined"], expected.numpy(), rtol=1e-6)


def test_decoding_is_that_of_the_model(workspace):
    session = workspace.sessions[0]
    code = session.codes[3]
    answer = session.decode(code.tolist())
    direct = session.explored.model.decode(
        torch.tensor(code[None], dtype=torch.float32), SAMPLES, generator=session.decoders._same.generator(), keep=True
    )
    np.testing.assert_allclose(answer["mean"], direct.mean[0].numpy(), atol=1e-5)
    np.testing.assert_allclose(answer["std"], direct.std[0].numpy(), atol=1e-5)
    np.testing.assert_allclose(answer["total_std"], direct.total_variance[0].sqrt().numpy(), atol=1e-5)
    np.testing.assert_allclose(answer["samples"], direct.samples[:8, 0].numpy(), atol=1e-5)
    assert answer["std"].max() > 0


@pytest.mark.parametrize("score", ["nll", "error", "output_std"])
def test_contributions_add_up_to_the_score_on_the_map(workspace, table, score: str):
    for session in (workspace.sessions[0], table.sessions[0]):
        answer = session.explain(5, score)
        assert answer["score"] == score
        assert answer["contributions"].sum() == pytest.approx(session.scores[score][5], rel=1e-3, abs=1e-3)
        assert answer["score_value"] == pytest.approx(session.scores[score][5], rel=1e-3, abs=1e-3)
    assert workspace.sessions[0].explain(5, "latent_std")["score"] == "nll"  # codes have no entries of data


def test_tables_are_answered_in_their_own_units(table):
    session, scaling = table.sessions[0], table.sessions[0].explored.run.scaling
    answer = session.explain(2)
    np.testing.assert_array_equal(answer["original"], table.points.rows[2])
    result = session.reconstruct(session.x[2:3])
    np.testing.assert_allclose(answer["reconstruction"], scaling.unscaled(result.mean)[0].numpy(), rtol=1e-5)
    np.testing.assert_allclose(answer["std"], (result.std[0].double() * scaling.scale).numpy(), rtol=1e-4)
    values = session.decode(session.codes[2].tolist())["mean"]
    spread = np.nanstd(table.points.rows, 0)
    assert (np.abs(values - np.nanmean(table.points.rows, 0)) < 4 * spread).all()


def test_neighbours_are_the_nearest_and_geodesics_reorder_them(workspace):
    session = workspace.sessions[0]
    near = session.explain(4)["neighbours"]
    distance = np.linalg.norm(session.codes - session.codes[4], axis=1)
    assert list(near) == [row for row in np.argsort(distance, kind="stable") if row != 4][:8]
    order = session.geodesic_order(4)
    assert sorted(order["rows"]) == sorted(session.neighbours(session.codes[4], 50, 4))
    assert (np.diff(order["geodesic"]) >= 0).all() and not (np.diff(order["euclidean"]) >= 0).all()
    direct = geometry.distances(
        session.few_decoders, session.as_codes(session.codes[4]), session.as_codes(session.codes[order["rows"][:2]]),
        points=ORDER_POINTS, steps=ORDER_STEPS,
    )  # fmt: skip
    np.testing.assert_allclose(order["geodesic"][:2], direct.numpy(), rtol=1e-4)


def test_the_geodesic_is_no_longer_than_the_straight_line(workspace):
    session = workspace.sessions[0]
    answer = session.path(session.codes[0], session.codes[9])
    assert answer["geodesic"]["length"] <= answer["straight"]["length"] * 1.0001
    for kind in ("straight", "geodesic"):
        curve = answer[kind]
        np.testing.assert_allclose(curve["codes"][[0, -1]], session.codes[[0, 9]], atol=1e-5)
        decoded = session.decode(curve["codes"][16])
        np.testing.assert_allclose(curve["mean"][16], decoded["mean"], atol=1e-4)
        assert curve["spread"][16] == pytest.approx(np.sqrt((decoded["std"] ** 2).mean()), rel=1e-3)


@pytest.mark.parametrize("quantity", BACKGROUNDS)
def test_backgrounds_agree_with_single_codes(workspace, quantity: str):
    session = workspace.sessions[0]
    box = (-1.0, 1.0, 0.0, 4.0)
    grid = session.background(quantity, (0.0, 0.0), (1.0, 0.0), (0.0, 1.0), box, 8)
    assert grid.shape == (8, 8) and np.isfinite(grid).all() and (grid >= 0).all()
    code = [-1 + 2 * 2.5 / 8, 4 * 5.5 / 8]  # the centre of cell 2 along u, 5 along v
    if quantity == "volume":
        expected = float(geometry.volume(session.few_decoders, torch.tensor([code])))
    elif quantity == "density":  # against the sum of kernels
        width = session.codes.std(0) * len(session.codes) ** (-1 / 6)
        kernels = np.exp(-0.5 * (((session.codes - code) / width) ** 2).sum(1)) / (2 * np.pi * width.prod())
        assert grid[5, 2] == pytest.approx(kernels.mean(), rel=0.2, abs=0.01)
        return
    else:
        expected = np.sqrt((session.decode(code)[quantity] ** 2).mean())
    assert grid[5, 2] == pytest.approx(expected, rel=1e-3)


def test_imputations_keep_what_was_observed(workspace, table):
    for session in (workspace.sessions[0], table.sessions[0]):
        missing = [0, 3]
        row = session.points.rows[6].astype(float)
        answer = session.impute(6, missing)
        hidden = answer["missing"]
        assert hidden.reshape(-1)[missing].all()
        np.testing.assert_array_equal(answer["mean"][~hidden], row[~hidden])
        assert (answer["std"][hidden] > 0).all() and (answer["std"][~hidden] == 0).all()
        assert np.isfinite(answer["samples"]).all()
        assert answer["samples"][:, hidden].std(0).max() > 0
    complete = next(k for k, row in enumerate(table.points.rows) if np.isfinite(row).all())
    assert not table.sessions[0].impute(complete, [])["missing"].any()


def test_a_second_data_set_is_compared(workspace, digits_run):
    turned = np.rot90(workspace.points.rows, axes=(2, 3)).copy()
    compared = Workspace([digits_run], most=150, second=turned, progress=False)
    answer = compared.second[1][0]
    inside, outside = compared.sessions[0].scores["nll"], answer["scores"]["nll"]
    assert answer["roc"]["nll"]["auroc"] == auroc(torch.tensor(inside), torch.tensor(outside))
    assert answer["codes"].shape == (150, 2)
    with pytest.raises(DataError, match="shape"):
        compared.set_second(type(compared.points)(np.zeros((3, 1, 4, 4)), None, "small"))


def test_two_models_share_rows_and_have_their_own_codes(pair):
    first, second = pair.sessions
    np.testing.assert_array_equal(first.points.rows, second.points.rows)
    assert not np.allclose(first.codes, second.codes)
    assert second.decoders.count == 1 and second.decode(second.codes[0])["samples"].shape[0] == 1
    assert second.decode(second.codes[0])["total_std"].min() > 0  # its decoder predicts a variance
    assert np.diag(second.explain(0)["code_covariance"]) == pytest.approx(second.code_std[0] ** 2)


def test_an_estimator_and_a_model_of_the_protocol():
    from marquis.sklearn import LaplacianAutoencoder

    X = load_wine().data[:, :6]  # pyright: ignore[reportAttributeAccessIssue]
    X = np.column_stack([X, np.full(len(X), 7.0)])  # a constant column, which the network does not see
    estimator = LaplacianAutoencoder(max_iter=5, samples=5, random_state=0).fit(X)
    session = Workspace([estimator], X, progress=False).sessions[0]
    answer = session.explain(1)
    assert answer["contributions"].shape == (7,) and answer["contributions"][6] == 0
    assert answer["reconstruction"][6] == 7.0 and answer["std"][6] == 0
    filled = session.impute(1, [0])
    assert filled["std"][0] > 0 and filled["samples"].shape == (8, 7)
    torch.manual_seed(0)
    plain = Workspace([Autoencoder(nn.Linear(7, 1), nn.Linear(1, 7))], X.astype(np.float32), progress=False).sessions[0]
    assert plain.latent == 1 and plain.decode([0.0])["std"].max() == 0
    assert plain.background("std", (0.0,), (1.0,), (0.0,), (0, 1, 0, 1), 4).shape == (4, 4)


def test_an_estimator_of_a_table_with_a_category():
    from marquis.sklearn import LaplacianAutoencoder

    wine = load_wine(as_frame=True)
    X = wine.data.iloc[:, :4].assign(kind=np.where(wine.target == 0, "red", "white"))  # pyright: ignore
    X["kind"] = X["kind"].astype("category")
    estimator = LaplacianAutoencoder(max_iter=5, samples=5, random_state=0).fit(X)
    shown = Workspace([estimator], X, progress=False)
    session = shown.sessions[0]
    assert shown.about()["levels"] == {"4": ["red", "white"]}
    assert list(session.points.rows[[0, 100], 4]) == [0.0, 1.0]
    answer = session.explain(1)
    assert answer["contributions"].shape == (5,) and answer["reconstruction"][4] in (0.0, 1.0)
    assert answer["contributions"].sum() == pytest.approx(session.scores["nll"][1], rel=1e-9)
    filled = session.impute(1, [0, 4])
    assert filled["mean"][4] in (0.0, 1.0) and filled["std"][0] > 0 and np.isfinite(filled["mean"]).all()


def test_the_users_module_is_not_touched():
    model = Autoencoder(nn.Sequential(nn.Linear(5, 2), nn.Dropout(0.5)), nn.Linear(2, 5)).train()
    before = [parameter.clone() for parameter in model.parameters()]
    session = Workspace([model], np.random.RandomState(0).randn(20, 5).astype(np.float32), progress=False).sessions[0]
    session.path(session.codes[0], session.codes[1])
    assert all(module.training for module in model.modules())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_twenty_threads_get_the_answers_of_one(workspace):
    session = workspace.sessions[0]

    def ask(k: int):
        row = k % 7
        return (
            session.decode(session.codes[row])["std"],
            session.explain(row)["contributions"],
            session.impute(row, [1, 2])["mean"],
            session.path(session.codes[row], session.codes[row + 1])["geodesic"]["codes"],
        )

    alone = [ask(k) for k in range(7)]
    with ThreadPoolExecutor(20) as pool:
        together = list(pool.map(ask, range(20)))
    for k, answers in enumerate(together):
        for one, other in zip(alone[k % 7], answers, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (lambda s: s.decode([0.0]), "a code has 2"),
        (lambda s: s.decode([float("nan"), 0.0]), "a code has 2"),
        (lambda s: s.explain(10_000), "numbered from 0 to 149"),
        (lambda s: s.explain(0, "unheard"), "unheard"),
        (lambda s: s.impute(0, [64]), "from 0 to 63"),
        (lambda s: s.background("colour", (0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0, 1, 0, 1), 4), "colour"),
    ],
)
def test_what_it_refuses(workspace, question, message: str):
    with pytest.raises(MarquisError, match=message):
        question(workspace.sessions[0])


def test_models_and_data_that_do_not_fit_are_refused(digits_run, wine_run):
    for models, data, message in [
        ([], None, "one model or two"),
        ([object()], np.zeros((3, 2)), "has no method"),
        ([Autoencoder(nn.Linear(5, 2), nn.Linear(2, 5))], None, "data= is needed"),
        ([Autoencoder(nn.Linear(5, 2), nn.Linear(2, 5))], np.zeros((3, 4), np.float32), "cannot take data of shape"),
        ([digits_run, wine_run], None, "in training"),
    ]:
        with pytest.raises(MarquisError, match=message):
            Workspace(models, data, progress=False)
    with pytest.raises(DataError, match="one label for each row"):
        Workspace([Autoencoder(nn.Linear(5, 2), nn.Linear(2, 5))], np.zeros((3, 5), np.float32), labels=[1])
