"""Results show themselves in notebooks: every number that is promised, and no HTML out of the data."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import marquis as mq
from marquis.notebook import html_table
from marquis.sklearn.drift import Drift
from marquis.sklearn.explanation import Explanation
from marquis.sklearn.imputed_table import ImputedTable


def cells(html: str) -> list[list[str]]:
    return [[cell.split("</td>")[0] for cell in row.split("<td>")[1:]] for row in html.split("<tr>")[2:]]


def test_cells_are_escaped_and_rows_counted():
    html = html_table("<b>", ["<i>"], [["<script>"], [1 / 3], [None], [float("nan")]], 7)
    assert "<script>" not in html and "<b>" not in html and "<i>" not in html
    assert cells(html) == [["&lt;script&gt;"], ["0.3333"], [""], [""]] and "3 more rows" in html


def test_posteriors_show_what_print_shows():
    torch.manual_seed(0)
    x, y = torch.randn(30, 2), torch.randint(0, 3, (30,))
    la = mq.Laplace(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)), "categorical").fit([(x, y)])
    tuned, prediction = la.tune(), la.predict(x[:12])
    for result in (tuned, la.check()):
        assert (
            result._repr_html_().startswith("<pre>")
            and str(result).split("\n")[0].split(",")[0] in result._repr_html_()
        )
    assert prediction.probs is not None
    shown = cells(prediction._repr_html_())
    assert len(shown) == 10 and "2 more rows" in prediction._repr_html_()
    assert [float(cell) for cell in shown[3]] == [float(f"{p:.4g}") for p in prediction.probs[3].tolist()]
    regression = mq.Laplace(nn.Linear(2, 1), "gaussian").fit([(x, x.sum(1, keepdim=True))]).predict(x[:3])
    assert "<th>mean</th><th>std</th><th>std without noise</th>" in regression._repr_html_()


def test_tables_mark_imputed_entries_and_name_columns():
    missing = np.array([[False, True], [False, False]])
    filled = ImputedTable(
        np.array([[1.0, 2.5], [3.0, 4.0]]), np.array([[0, 0.25], [0, 0]]), np.zeros((0, 2, 2)), missing
    )
    assert cells(filled._repr_html_()) == [["0", "1", "2.5 ± 0.25"]]
    terms, other = np.array([[1.0, -2.0], [3.0, 4.0]]), np.zeros((2, 2))
    explanation = Explanation(terms, other, other, other, other, ["a", "b"], 0.9)
    assert [row[:3] for row in cells(explanation._repr_html_())] == [["1", "7", "b"], ["0", "-1", "a"]]
    drift = Drift(0.02, {"score": 0.01}, 0.05)
    assert "no drift" not in drift._repr_html_() and cells(drift._repr_html_())[-1] == ["all together", "0.02"]
