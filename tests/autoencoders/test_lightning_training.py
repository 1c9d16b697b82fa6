"""Training that may be killed at any moment: resumed, it ends with the same bits as if nothing had happened."""

from __future__ import annotations

import math
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from marquis.autoencoders import ModelSpec, fit
from marquis.autoencoders.checkpoints import MONITOR, read_checkpoint, restore
from marquis.autoencoders.epoch_table import read_rows
from marquis.autoencoders.stopping import StoppingRule
from marquis.data import DataModule
from marquis.errors import DataError
from marquis.io.atomic import remove_leftovers

EPOCHS = 5
SHAPE = (1, 8, 8)


def model_of(kind: str = "lae", seed: int = 0, **options: Any) -> Any:
    return ModelSpec(kind, SHAPE, 2, width=0.125, **options).build(seed)


def digits(batch_size: int = 32, limit: int = 100) -> DataModule:
    return DataModule("digits", limit=limit, batch_size=batch_size)


def trained(out: Path, kind: str = "lae", **options: Any) -> tuple[Any, Any]:
    model = model_of(kind)
    settings = {"max_epochs": EPOCHS, "progress": False, "tensorboard": False, **options}
    return model, fit(model, digits(), out, **settings)


def assert_same(one: Any, two: Any, where: str = "") -> None:
    """The same, bit for bit, however it is nested."""
    assert type(one) is type(two), where
    if isinstance(one, dict):
        assert one.keys() == two.keys(), where
        for key in one:
            assert_same(one[key], two[key], f"{where}/{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(two), where
        for number, pair in enumerate(zip(one, two, strict=True)):
            assert_same(*pair, f"{where}/{number}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, two), where
    elif not where.endswith("/seconds"):
        assert one == two or one != one, where


# ---- killed


class KillAt(Callback):
    """Ends the process as `kill -9` would, in the middle of an epoch, after one, or while a checkpoint is written."""

    def __init__(self, moment: str, epoch: int) -> None:
        self.moment, self.epoch = moment, epoch

    def on_train_epoch_start(self, trainer, pl_module):
        if self.moment == "after checkpoint" and trainer.current_epoch == self.epoch + 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.current_epoch != self.epoch or batch_idx != 1:
            return
        if self.moment == "in an epoch":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.moment == "while writing":
            whole = torch.save

            def half(checkpoint, path):
                whole(checkpoint, path)
                if "optimizer_states" in checkpoint:  # the one to resume from; the best one is complete by then
                    os.truncate(path, os.path.getsize(path) // 2)
                    os.kill(os.getpid(), signal.SIGKILL)

            torch.save = half


def _killed(out: str, kind: str, moment: str, epoch: int) -> None:
    torch.set_num_threads(1)
    trained(Path(out), kind, resume=True, callbacks=[KillAt(moment, epoch)])


MOMENTS = [("in an epoch", 0), ("in an epoch", 1), ("after checkpoint", 2), ("while writing", 3)]


@pytest.mark.parametrize("kind", ["lae", "vae"])
def test_killed_at_any_moment_it_goes_on_to_the_same_bits(kind, tmp_path):
    whole, result = trained(tmp_path / "whole", kind)
    # a server that has imported everything: every process is forked from it, without importing again
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["marquis.autoencoders", "marquis.data.module"])
    for number, (moment, epoch) in enumerate(MOMENTS):
        process = context.Process(target=_killed, args=(str(tmp_path / "killed"), kind, moment, epoch))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL, moment
        folder = tmp_path / "killed" / "checkpoints"
        if number > 0:  # the first one died before anything was complete
            assert read_checkpoint(folder / "last.ckpt")["epoch"] == epoch - (moment != "after checkpoint")
    assert list(folder.glob(".part-*"))  # half a checkpoint, which nobody will take for one
    resumed, again = trained(tmp_path / "killed", kind, resume=True)
    assert not list(folder.glob(".part-*"))
    assert (again.epochs, again.best_epoch, again.best_loss) == (EPOCHS, result.best_epoch, result.best_loss)
    for name in ("last.ckpt", "best.ckpt"):
        one, two = (read_checkpoint(tmp_path / run / "checkpoints" / name) for run in ("whole", "killed"))
        assert_same(one, two, name)  # weights, optimiser, schedule, curvature, noise, prior, streams, early stopping
    assert_same(whole.state_dict(), resumed.state_dict())
    one, two = (read_rows(tmp_path / run / "metrics.csv") for run in ("whole", "killed"))
    assert [row["epoch"] for row in one] == list(range(EPOCHS))
    assert_same(one, two)
    x = digits().val_dataloader().dataset[0][0][None]  # type: ignore[union-attr]
    drawn = [model.reconstruct(x, 3, generator=torch.Generator().manual_seed(0)) for model in (whole, resumed)]
    assert torch.equal(drawn[0].mean, drawn[1].mean) and torch.equal(drawn[0].variance, drawn[1].variance)


def test_the_comparison_notices_a_difference(tmp_path):
    """A run that draws other numbers after the interruption is found out."""
    trained(tmp_path / "whole", "vae", max_epochs=2)
    trained(tmp_path / "other", "vae", max_epochs=1)
    path = tmp_path / "other" / "checkpoints" / "last.ckpt"
    changed = read_checkpoint(path)
    changed["state_dict"]["noise.count"] += 1
    torch.save(changed, path)
    trained(tmp_path / "other", "vae", max_epochs=2, resume=True)
    one, two = (read_checkpoint(tmp_path / run / "checkpoints" / "last.ckpt") for run in ("whole", "other"))
    with pytest.raises(AssertionError):
        assert_same(one["state_dict"]["encoder.1.weight"], two["state_dict"]["encoder.1.weight"])


# ---- stopping, schedule, best weights


class Told(Callback):
    """Pretends validation losses."""

    def __init__(self, losses: list[float]) -> None:
        self.losses = losses
        self.rates: list[float] = []

    def on_train_epoch_start(self, trainer, pl_module):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_validation_epoch_end(self, trainer, pl_module):
        pl_module.log(MONITOR, self.losses[trainer.current_epoch], on_epoch=True)


def run_with_losses(out: Path, losses: list[float], epochs: int, **options: Any) -> tuple[Any, Any, Told]:
    model, received = model_of("ae"), Told(losses)
    model.validation_step = lambda batch, batch_idx: None  # type: ignore[method-assign]
    settings = {"progress": False, "tensorboard": False, "callbacks": [received], **options}
    return model, fit(model, digits(), out, max_epochs=epochs, **settings), received


def test_early_stopping_and_schedule_survive_an_interruption(tmp_path):
    losses = [9.0, 5.0, *[6.0] * 20]
    _, whole, received = run_with_losses(tmp_path / "whole", losses, 30)
    assert whole.stopped_early and whole.epochs == 10 and (whole.best_epoch, whole.best_loss) == (1, 5.0)
    assert received.rates == [1e-3] * 8 + [5e-4] * 2  # halved after five epochs without improvement and one more
    for epochs in (4, 7, 8):  # stopped at several places, one of them right before the rate changes
        _, part, again = run_with_losses(tmp_path / "parts", losses, epochs, resume=True)
        assert part.epochs == epochs
    _, part, again = run_with_losses(tmp_path / "parts", losses, 30, resume=True)
    assert part.stopped_early and part.epochs == 10 and again.rates == [5e-4] * 2
    one, two = (read_checkpoint(tmp_path / run / "checkpoints" / "last.ckpt") for run in ("whole", "parts"))
    assert_same(one, two)
    # once more: a run that has stopped stays as it is
    _, after, again = run_with_losses(tmp_path / "parts", losses, 30, resume=True)
    assert after.epochs == 10 and not again.rates


def test_the_best_weights_are_restored(tmp_path):
    model, result, _ = run_with_losses(tmp_path, [3.0, 1.0, 2.0, 4.0], 4)
    assert (result.best_epoch, result.best_loss, result.stopped_early) == (1, 1.0, False)
    best, last = (read_checkpoint(tmp_path / "checkpoints" / f"{name}.ckpt") for name in ("best", "last"))
    assert best["epoch"] == 1 and last["epoch"] == 3
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, best["state_dict"][name])
    assert any(not torch.equal(best["state_dict"][name], last["state_dict"][name]) for name in last["state_dict"])


def test_without_validation_data_the_last_epoch_counts(tmp_path):
    model = model_of("ae")
    data = DataModule("digits", limit=64, batch_size=32, validation=0)
    result = fit(model, data, tmp_path, max_epochs=2, progress=False, tensorboard=False)
    assert (result.epochs, result.best_epoch, result.best_loss) == (2, 1, None)


def test_the_global_random_stream_is_left_alone_and_a_run_may_be_moved(tmp_path):
    state = torch.random.get_rng_state()
    whole, _ = trained(tmp_path / "whole", "dropout", max_epochs=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    trained(tmp_path / "before", "dropout", max_epochs=1)
    os.rename(tmp_path / "before", tmp_path / "after")
    torch.manual_seed(123)  # another session has another global stream
    moved, result = trained(tmp_path / "after", "dropout", max_epochs=3, resume=True)
    assert_same(whole.state_dict(), moved.state_dict())
    assert result.epochs == 3


def test_ctrl_c_leaves_a_run_that_goes_on(tmp_path):
    class Interrupt(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.current_epoch == 2:
                raise KeyboardInterrupt

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="after 2 complete epochs"):
        trained(tmp_path / "stopped", callbacks=[Interrupt()], max_epochs=3)
    assert signal.getsignal(signal.SIGINT) is handler
    stopped, _ = trained(tmp_path / "stopped", resume=True, max_epochs=3)
    whole, _ = trained(tmp_path / "whole", max_epochs=3)
    assert_same(whole.state_dict(), stopped.state_dict())


@pytest.fixture
def ctrl_c_heard():
    """Ctrl-C as on a terminal: a shell's background jobs are started with it switched off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_waits_for_the_end_of_the_batch_and_twice_does_not(tmp_path, ctrl_c_heard):
    class Press(Callback):
        """Ctrl-C in the middle of a step, where a lock may be held."""

        def __init__(self, times: int) -> None:
            self.times, self.went_on = times, 0

        def on_before_optimizer_step(self, *_: Any) -> None:
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)
            self.went_on += 1

    handler = signal.getsignal(signal.SIGINT)
    for times, steps in ((1, 1), (2, 0)):
        press = Press(times)
        with pytest.raises(KeyboardInterrupt, match="after 0 complete epochs"):
            trained(tmp_path / str(times), "ae", callbacks=[press], max_epochs=2)
        assert press.went_on == steps and signal.getsignal(signal.SIGINT) is handler


def test_ctrl_c_that_is_switched_off_stays_so(tmp_path, ctrl_c_heard):
    class Press(Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, result = trained(tmp_path, "ae", callbacks=[Press()], max_epochs=1)
    assert result.epochs == 1 and signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_logs(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    trained(tmp_path, "lae", max_epochs=1, tensorboard=True, progress=True)
    message = capsys.readouterr()
    assert message.out.startswith("epoch 0: train_loss") and "Tip" not in message.out + message.err
    rows = read_rows(tmp_path / "metrics.csv")
    assert {"train_loss", MONITOR, "noise_precision", "prior_precision", "effective_temperature"} <= rows[0].keys()
    assert rows[0]["step"] == 3 and list((tmp_path / "tensorboard").glob("events*"))


# ---- several processes, mixed precision

TWO = """
import sys, torch
torch.set_num_threads(1)
from marquis.autoencoders import ModelSpec, fit
from marquis.data import DataModule
out, devices, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
model = ModelSpec("lae", (1, 8, 8), 2, width=0.125, options={"estimator": "exact"}).build(0).double()
data = DataModule("digits", limit=80, batch_size=batch, dtype=torch.float64, validation=16)
options = {"strategy": "ddp", "devices": 2} if devices == 2 else {}
options |= {"precision": "64-true", "accelerator": "cpu"}
fit(model, data, out, max_epochs=2, progress=False, tensorboard=False, **options)
"""


def test_two_processes_learn_what_one_would(tmp_path, monkeypatch):
    """64 rows: batches of 16 in two processes each are batches of 32 in one, in the same order."""
    script = tmp_path / "two.py"
    script.write_text(TWO)
    command = [sys.executable, str(script), str(tmp_path / "p2"), "2", "16"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr(sys, "argv", [str(script), str(tmp_path / "p1"), "1", "32"])
    runpy.run_path(str(script))
    one, two = (read_checkpoint(tmp_path / f"p{number}" / "checkpoints" / "last.ckpt") for number in (1, 2))
    assert one["global_step"] == two["global_step"] == 4
    for name, tensor in one["state_dict"].items():
        torch.testing.assert_close(two["state_dict"][name], tensor, rtol=1e-9, atol=1e-11)
    online = [held["online_laplace"]["state"] for held in (one, two)]
    for key in ("noise_precision", "prior_precision", "data"):
        assert online[1]["numbers"][key] == pytest.approx(online[0]["numbers"][key], rel=1e-9)
    values = [state["structures"]["curvature"] for state in online]
    for key, tensor in values[0].items():
        torch.testing.assert_close(values[1][key], tensor, rtol=1e-8, atol=1e-12)


def test_mixed_precision_leaves_the_curvature_alone(tmp_path):
    """The first step's curvature, from the same weights and probes, is that of full precision; its loss is not."""
    held = []
    for precision in ("32-true", "bf16-mixed"):
        model = model_of("lae")
        out = tmp_path / precision
        options = {"max_epochs": 1, "progress": False, "tensorboard": False, "limit_train_batches": 1}
        fit(model, digits(), out, precision=precision, **options)
        held.append((model.online.state, read_rows(out / "metrics.csv")[0]["train_loss"]))
    (full, loss), (mixed, other) = held
    assert mixed.curvature.values.dtype == torch.float32
    torch.testing.assert_close(mixed.curvature.values, full.curvature.values, rtol=1e-5, atol=1e-7)
    assert loss != other and loss == pytest.approx(other, rel=0.05)


# ---- what is refused


def test_a_folder_with_checkpoints_is_not_written_over(tmp_path):
    trained(tmp_path, "ae", max_epochs=1)
    with pytest.raises(DataError, match="resume=True"):
        trained(tmp_path, "ae", max_epochs=1)


@pytest.mark.parametrize("option", [{"max_epochs": 0}, {"patience": 0}, {"seed": -1}])
def test_bad_numbers(option, tmp_path):
    with pytest.raises(DataError, match=next(iter(option))):
        fit(model_of("ae"), digits(), tmp_path, **option)


class _Evil:
    def __reduce__(self):
        return os.mkdir, (os.environ["MARQUIS_EVIL"],)


def test_checkpoints_never_run_code(tmp_path, monkeypatch):
    model, _ = trained(tmp_path, "ae", max_epochs=1)
    path, evil = tmp_path / "checkpoints" / "last.ckpt", tmp_path / "evil"
    monkeypatch.setenv("MARQUIS_EVIL", str(evil))
    torch.save({"state_dict": model.state_dict(), "code": _Evil()}, path)
    with pytest.raises(DataError, match="checkpoint"):
        trained(tmp_path, "ae", resume=True)
    with pytest.raises(DataError, match="checkpoint") as refused:
        restore(model, path)
    message = "".join(traceback.format_exception(refused.value))
    assert "never executed" in message and "weights_only" not in message  # torch's text advises to load it unsafely
    assert not evil.exists()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="damaged"):
        trained(tmp_path, "ae", resume=True)
    with pytest.raises(DataError, match="no checkpoint"):
        read_checkpoint(tmp_path / "absent.ckpt")


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    kept = [tmp_path / name for name in ("model.safetensors", ".mine", "notes.part")]
    left = [tmp_path / name for name in (".part-last-x1.ckpt", ".part-model-x1.safetensors")]
    for path in (*kept, *left):
        path.write_text("")
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_the_stopping_rule():
    rule = StoppingRule(patience=3, tolerance=0.5)
    script = [(5.0, True), (4.6, False), (4.4, True), (4.0, False), (6.0, False)]
    assert [rule.update(epoch, loss) for epoch, (loss, _) in enumerate(script)] == [better for _, better in script]
    assert (rule.best_epoch, rule.best_loss, rule.waited, rule.should_stop) == (2, 4.4, 2, False)
    assert not rule.update(5, 4.0) and rule.exhausted and rule.should_stop
    assert rule.update(6, 1.0) and not rule.should_stop  # more epochs were asked for, and one was better
    assert not rule.update(7, math.nan) and rule.should_stop and not rule.exhausted
    without = StoppingRule(1)
    assert all(without.update(epoch, None) for epoch in range(4)) and without.best_epoch == 3


def test_checkpoints_of_earlier_versions_know_how_long_the_run_has_waited(tmp_path):
    """They kept that count in a callback that is no more."""
    losses = [9.0, 5.0, *[6.0] * 20]
    run_with_losses(tmp_path, losses, 7)
    path = tmp_path / "checkpoints" / "last.ckpt"
    held = read_checkpoint(path)
    (kept,) = (state for name, state in held["callbacks"].items() if "EpochCheckpoints" in name)
    assert kept.pop("waited") == 5
    held["callbacks"]["Patience{'monitor': 'validation_loss', 'mode': 'min'}"] = {"wait_count": 5, "patience": 8}
    torch.save(held, path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        _, result, _ = run_with_losses(tmp_path, losses, 30, resume=True)
    assert result.stopped_early and result.epochs == 10
