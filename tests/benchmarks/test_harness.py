"""The benchmark's machinery on a network of a few weights. What it measures is checked, how fast that is never."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the benchmarks are not part of the installed package

from benchmarks import bars, environment, measure, report, run, workloads


def a_row(workload: str, method: str, *, ratio: float = 1.2, seconds: float = 0.5, peak: float = 30.0) -> dict:
    times = {"plain_seconds": seconds / ratio, "seconds": seconds, "ratio": ratio, "ratio_quartiles": [ratio, ratio]}
    memory = {"plain_peak_mb": 20.0, "peak_mb": peak, "peak_ratio": peak / 20.0}
    row = {"workload": workload, "method": method, "status": "measured", "repeats": 3}
    return row | {"cpu": times, "wall": times} | memory


def a_run(rows: list[dict]) -> dict:
    return {
        "taken": "today",
        "machine": run.machine(),
        "busy_before": 0.0,
        "provisional": False,
        "peers_word": "ready",
        "rows": rows,
    }


@pytest.fixture
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring inside the test process must not pin it to a core for the tests after."""
    monkeypatch.setattr(measure, "pin_to_one_core", lambda: None)


@pytest.fixture(scope="module")
def taken() -> dict:
    """One real measurement, in processes of its own as in a run."""
    return run.take(Path(sys.executable), "tiny", "ours:exact", seconds=0.01)


def test_a_measurement_in_its_own_process_has_both_clocks_and_the_peak(taken: dict) -> None:
    assert taken["status"] == "measured", taken
    for clock in ("cpu", "wall"):
        assert taken[clock]["seconds"] > 0
        assert taken[clock]["plain_seconds"] > 0
        low, high = taken[clock]["ratio_quartiles"]
        assert low <= taken[clock]["ratio"] <= high
    assert taken["repeats"] >= 1
    if sys.platform == "linux":
        assert taken["peak_mb"] >= taken["kept_mb"] >= 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_counts_what_is_freed_again_and_not_what_was_there_before() -> None:
    before = torch.ones(8_000_000)  # 32 MB that must not count

    def call() -> torch.Tensor:
        temporary = torch.ones(16_000_000)  # 64 MB, freed before the call returns
        return temporary[:1].clone()

    peak = measure.peak_bytes(call)
    assert 63e6 <= peak < 80e6  # the kernel counts pages in batches, so the mark may lag by some of them
    assert measure.peak_bytes(lambda: before[:1].clone()) < 16e6


def test_tensors_kept_between_calls_are_found() -> None:
    start = measure._tensor_bytes()
    kept = [torch.zeros(1_000_000)]
    views = [kept[0][:10], kept[0][5:]]  # the same storage, to be counted once
    assert measure._tensor_bytes() - start == 4_000_000
    assert len(views) == 2


def test_the_ratio_is_the_median_over_turns_not_the_ratio_of_medians() -> None:
    summary = measure._summary([(1.0, 2.0), (10.0, 20.0), (2.0, 8.0)])
    assert summary["ratio"] == 2.0
    assert summary["seconds"] / summary["plain_seconds"] == 4.0


def test_what_cannot_be_measured_is_a_row_with_a_reason(own_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import ours

    def broken(_workload: workloads.Workload):
        def call() -> object:
            raise ours.LeftOutError("no rule for this")

        return call

    monkeypatch.setitem(ours.METHODS, "broken", broken)
    row = measure.measure("memory", "tiny", "ours:broken")
    assert (row["status"], row["reason"]) == ("left out", "LeftOutError: no rule for this")
    assert "left out: LeftOutError" in report.one_line(row | {"method": "ours:exact"})


def test_a_process_that_dies_is_a_row_with_a_reason() -> None:
    row = run.take(Path(sys.executable), "no such workload", "ours:exact", seconds=0.01)
    assert row["status"] == "left out"
    assert "no such workload" in row["reason"]


@pytest.mark.parametrize("name", ["tiny", "W1/2", "W2/2", "W4/2", "F8"])
def test_workloads_are_the_same_in_every_process_and_their_plain_step_gives_gradients(name: str) -> None:
    first, second = workloads.build(name), workloads.build(name)
    assert torch.equal(first.x, second.x)
    pairs = zip(first.model.parameters(), second.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    gradients = workloads.plain_step(first)()
    assert all(g.abs().sum() > 0 for g in gradients)  # type: ignore[attr-defined]
    flat = first.flattened()
    assert flat.model(flat.x).dim() == 2
    assert torch.equal(flat.model(flat.x).flatten(), first.model(first.x).flatten())


def test_workloads_have_the_stated_sizes() -> None:
    widths = (784, 512, 256, 2, 256, 512, 784)
    dense = sum((i + 1) * o for i, o in pairwise(widths))
    assert sum(p.numel() for p in workloads.dense_autoencoder().parameters()) == dense
    assert workloads.build("W2/2").model(torch.rand(2, 1, 28, 28)).shape == (2, 1, 28, 28)
    assert workloads.build("W4").x.shape == (128, 1, 28, 28)
    assert workloads.build("F512").x.shape == (1, 3, 512, 512)


def test_bars_are_judged_both_ways() -> None:
    bar = bars.Bar("W1", "ours:exact", "ratio", 35.0)
    good, bad = [a_row("W1", "ours:exact", ratio=34.9)], [a_row("W1", "ours:exact", ratio=35.1)]
    assert report._bar_cells(bar, good)[-1] == "yes"
    assert report._bar_cells(bar, bad)[-1] == "**no**"
    assert report._bar_cells(bar, [])[-1] == "not measured"
    memory = bars.Bar("W1", "ours:exact", "peak_ratio", 2.2)
    assert memory.value([a_row("W1", "ours:exact", peak=50.0)]) == 2.5


def test_every_bar_belongs_to_a_measurement_of_the_run() -> None:
    assert {(bar.workload, bar.method) for bar in bars.BARS} <= set(run.measurements())


def test_a_large_exact_measurement_is_tried_only_if_it_promises_to_be_fast() -> None:
    fast, slow = [a_row("F128", "ours:exact", seconds=1.0)], [a_row("F128", "ours:exact", seconds=9.0)]
    assert run.too_slow("F256", "ours:exact", fast) is None
    assert run.too_slow("F256", "ours:exact", slow) is not None
    assert run.too_slow("F256", "ours:exact", []) is not None
    assert run.too_slow("F256", "ours:sketched", []) is None
    assert run.too_slow("W1", "ours:exact", []) is None


def test_the_page_shows_measured_and_left_out_rows_and_both_pictures(tmp_path, taken: dict) -> None:
    rows = [
        taken | {"workload": "W1"},
        a_row("W4", "ours:exact", ratio=7.0),
        a_row("F8", "ours:sketched", seconds=0.001),
        a_row("W4/8", "laplace:diagonal", ratio=99.0),
        {"workload": "W2", "method": "backpack:exact", "status": "left out", "reason": "no <class Upsample>"},
    ]
    report.write(a_run(rows), tmp_path)
    page = (tmp_path / "index.md").read_text()
    assert "| W4, diagonal, exact | time | 4.5 x | 7.00 x | **no** |" in page
    assert "laplace-torch diagonal, default (batch 8)" in page
    assert "no &lt;class Upsample&gt;" in page
    assert "Provisional" not in page
    tables = [block for block in page.split("\n\n") if block.startswith("|")]
    assert len(tables) == 6
    for lines in (block.splitlines() for block in tables):  # a cell too many or too few breaks a table
        assert {line.count("|") for line in lines} == {lines[0].count("|")}
    for picture in ("ratios.png", "figure7.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")


def test_a_run_writes_json_that_renders_again(tmp_path, monkeypatch: pytest.MonkeyPatch, taken: dict) -> None:
    monkeypatch.setattr(run, "take", lambda _python, workload, method, _seconds: taken | {"workload": workload})
    monkeypatch.setattr(run, "busy_share", lambda: 0.9)
    monkeypatch.setattr(run, "PARTIAL", tmp_path / "partial.json")
    run.main(["--out", str(tmp_path), "--no-peers", "--only", "W1 ours:exact"])
    results = json.loads((tmp_path / "results.json").read_text())
    assert [row["workload"] for row in results["rows"]] == ["W1"]
    assert results["machine"]["torch"] == torch.__version__
    first = (tmp_path / "index.md").read_text()
    assert "Provisional" in first
    assert not (tmp_path / "partial.json").exists()
    run.main(["--out", str(tmp_path), "--render"])
    assert (tmp_path / "index.md").read_text() == first


def test_an_interrupted_run_leaves_its_rows_and_not_a_page(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(_python: Path, workload: str, method: str, _seconds: float) -> dict:
        if method == "ours:approximate":
            raise KeyboardInterrupt
        return a_row(workload, method)

    monkeypatch.setattr(run, "take", take)
    monkeypatch.setattr(run, "busy_share", lambda: 0.0)
    monkeypatch.setattr(run, "PARTIAL", tmp_path / "partial.json")
    with pytest.raises(KeyboardInterrupt):
        run.main(["--out", str(tmp_path / "out"), "--no-peers"])
    rows = json.loads((tmp_path / "partial.json").read_text())["rows"]
    assert [(row["workload"], row["method"]) for row in rows] == [("W1", "ours:sketched")]
    assert not (tmp_path / "out" / "results.json").exists()


def test_peers_that_cannot_be_installed_are_skipped_with_a_word(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "HOME", tmp_path / "peers")
    monkeypatch.setattr(environment.sys, "executable", "/no/such/python")
    python, word = environment.peers_python()
    assert python is None
    assert "No such file" in word
