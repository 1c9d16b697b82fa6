"""Files that were cut short, altered or made up: loading raises our error, and never runs what is in them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import marquis as mq
from marquis.io.tensors import _digest


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).eval()


@pytest.fixture(scope="module")
def fitted(model) -> mq.Laplace:
    generator = torch.Generator().manual_seed(1)
    batch = torch.randn(20, 3, generator=generator), torch.randn(20, 2, generator=generator)
    return mq.Laplace(model, "gaussian", prior=mq.Prior(1.0, "layer")).fit([batch], progress=False)


def contents(path: Path) -> tuple[dict, dict[str, torch.Tensor]]:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["marquis"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def write(path: Path, described: dict, tensors: dict[str, torch.Tensor]) -> Path:
    """A made-up file whose checksum is right, so that the checks behind it are the ones that have to notice."""
    described = {key: value for key, value in described.items() if key != "sha256"}
    text = json.dumps({**described, "sha256": _digest(described, tensors)})
    save_file(tensors, path, metadata={"marquis": text})
    return path


@pytest.mark.parametrize("what", ["laplace", "posterior"])
def test_one_flipped_bit_is_noticed(fitted, model, tmp_path, what):
    path = tmp_path / "whole.safetensors"
    (fitted if what == "laplace" else fitted.posterior).save(path)
    whole = bytearray(path.read_bytes())
    for position in range(len(whole) - 1, len(whole) - 400, -29):  # the tensors are at the end
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(mq.DataError, match="checksum"):
            mq.load(path, model)


def test_a_broken_structure_is_our_error(fitted, model, tmp_path):
    path = tmp_path / "whole.safetensors"
    fitted.posterior.save(path)
    described, tensors = contents(path)
    for name in [name for name in tensors if name.startswith("precision.")]:
        broken = {**tensors, name: torch.zeros(3, dtype=torch.uint8)}
        with pytest.raises(mq.MarquisError):
            mq.load(write(tmp_path / "broken.safetensors", described, broken), model)


@pytest.mark.parametrize("what", ["laplace", "posterior"])
def test_cut_short_anywhere(fitted, model, tmp_path, what):
    path = tmp_path / "whole.safetensors"
    (fitted if what == "laplace" else fitted.posterior).save(path)
    whole = path.read_bytes()
    assert mq.load(path, model) is not None
    short = tmp_path / "short.safetensors"
    for length in [0, 1, 7, 8, 9, *range(10, len(whole), 37), len(whole) - 1]:
        short.write_bytes(whole[:length])
        with pytest.raises(mq.DataError, match="truncated"):
            mq.load(short, model)


class Bomb:
    exploded = False

    def __reduce__(self):
        return setattr, (Bomb, "exploded", True)


def test_a_pickle_is_not_run(model, tmp_path):
    for name, text in {
        "pickle": pickle.dumps(Bomb()),
        "header": len(pickle.dumps(Bomb())).to_bytes(8, "little") + pickle.dumps(Bomb()),
    }.items():
        path = tmp_path / name
        path.write_bytes(text)
        with pytest.raises(mq.DataError):
            mq.load(path, model)
    torch.save(Bomb(), tmp_path / "torch")
    with pytest.raises(mq.DataError):
        mq.load(tmp_path / "torch", model)
    assert not Bomb.exploded
    pickle.loads(pickle.dumps(Bomb()))
    assert Bomb.exploded  # it would have


@pytest.mark.parametrize("size", [2**63 - 1, 2**64 - 1, 10**9])
def test_a_header_that_promises_too_much(model, tmp_path, size):
    path = tmp_path / "huge.safetensors"
    path.write_bytes(size.to_bytes(8, "little") + b"{}")
    with pytest.raises(mq.DataError):
        mq.load(path, model)


def test_every_piece_is_needed(fitted, model, tmp_path):
    path = tmp_path / "whole.safetensors"
    fitted.save(path)
    described, tensors = contents(path)
    for name in tensors:
        broken = write(tmp_path / "broken.safetensors", described, {n: t for n, t in tensors.items() if n != name})
        with pytest.raises(mq.MarquisError):
            mq.load(broken, model)
    for key in described["header"]:
        header = {k: v for k, v in described["header"].items() if k != key}
        changed = write(tmp_path / "broken.safetensors", {**described, "header": header}, tensors)
        if key == "posterior_temperature":  # files of version 0.1.0 have none
            assert mq.load(changed, model).posterior_temperature == 1
            continue
        if key == "kind":  # nor this
            assert mq.load(changed, model).kind == "ggn"
            continue
        with pytest.raises(mq.MarquisError):
            mq.load(changed, model)


@pytest.mark.parametrize("bad", [None, -1, 10**30, "x", [["a", [1]]], {"a": 1}], ids=str)
def test_wrong_kinds_in_the_description(fitted, model, tmp_path, bad):
    path = tmp_path / "whole.safetensors"
    fitted.save(path)
    described, tensors = contents(path)
    for key in ("version", "kind", "header"):
        with pytest.raises(mq.DataError):
            mq.load(write(tmp_path / "broken.safetensors", {**described, key: bad}, tensors), model)
    for key in ("layout", "model", "temperature", "structure"):
        if key == "temperature" and bad == 10**30:
            continue  # a very wide posterior, but a temperature
        header = {**described["header"], key: bad}
        with pytest.raises(mq.MarquisError):
            mq.load(write(tmp_path / "broken.safetensors", {**described, "header": header}, tensors), model)


def test_not_a_number(fitted, model, tmp_path):
    path = tmp_path / "whole.safetensors"
    fitted.posterior.save(path)
    described, tensors = contents(path)
    bad = {**tensors, "mean.0.weight": tensors["mean.0.weight"] * float("nan")}
    with pytest.raises(mq.DataError, match="posterior mean"):
        mq.load(write(tmp_path / "broken.safetensors", described, bad), model)


def test_another_network_is_refused(fitted, tmp_path):
    path = tmp_path / "whole.safetensors"
    fitted.save(path)
    with pytest.raises(mq.ModelMismatchError, match="shape"):
        mq.load(path, nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).eval())
    with pytest.raises(mq.ModelMismatchError, match="other parameters"):
        mq.load(path, nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).eval())


def test_a_crash_leaves_the_old_file(fitted, model, tmp_path, monkeypatch):
    path = tmp_path / "whole.safetensors"
    fitted.save(path)
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *names: (_ for _ in ()).throw(OSError("power cut")))
    with pytest.raises(OSError, match="power cut"):
        fitted.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["whole.safetensors"]
