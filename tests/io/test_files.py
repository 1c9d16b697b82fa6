"""Atomic writes, locks and checksums: nothing half written, nothing damaged used, nothing harmed."""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
import warnings

import pytest
import torch

from marquis.errors import DataError, StorageError
from marquis.io import checksum
from marquis.io.atomic import remove_leftovers, replacing, write_text
from marquis.io.lock import exclusive
from marquis.io.previous import previous_of, read_newest, replacing_twice
from marquis.io.tensors import load_tensors, save_tensors

FLIPS = 60


def flip(raw: bytes, position: int, bit: int) -> bytes:
    return raw[:position] + bytes([raw[position] ^ (1 << bit)]) + raw[position + 1 :]


def flips(raw: bytes, seed: int = 0):
    """The first and last 100 bytes, where names, lengths and checksums are, and random places between."""
    chooser = random.Random(seed)
    edges = [*range(min(100, len(raw))), *range(max(0, len(raw) - 100), len(raw))]
    for position in [*edges, *(chooser.randrange(len(raw)) for _ in range(FLIPS))]:
        yield flip(raw, position, chooser.randrange(8))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_only_regular_files_are_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(StorageError, match="pipe"):
        write_text(pipe, "x")
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    with pytest.raises(StorageError, match="folder"):
        write_text(tmp_path, "x")


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="needs a device")
def test_a_device_is_left_alone():
    before = os.lstat("/dev/null")
    with pytest.raises(StorageError, match="device"):
        write_text("/dev/null", "x")
    assert os.lstat("/dev/null").st_rdev == before.st_rdev


def test_links_are_followed_inside_their_folder_only(tmp_path):
    inside, outside = tmp_path / "a.txt", tmp_path / "elsewhere" / "b.txt"
    outside.parent.mkdir()
    outside.write_text("theirs")
    inside.write_text("old")
    (tmp_path / "near").symlink_to("a.txt")
    (tmp_path / "far").symlink_to(outside)
    write_text(tmp_path / "near", "new")
    assert inside.read_text() == "new" and (tmp_path / "near").is_symlink()
    with pytest.raises(StorageError, match="link"):
        write_text(tmp_path / "far", "ours")
    assert outside.read_text() == "theirs"


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_said_in_our_words(tmp_path):
    def full(temporary):
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.txt"
    with pytest.raises(StorageError, match=r"a\.txt cannot be written: No space left"), replacing(path) as temporary:
        full(temporary)
    assert not list(tmp_path.iterdir())


def test_names_of_the_greatest_length_are_written(tmp_path):
    path = tmp_path / ("n" * 250 + ".txt")
    write_text(path, "x")
    assert path.read_text() == "x"
    with pytest.raises(StorageError, match="name"):
        write_text(tmp_path / ("n" * 300), "x")


def test_json_with_a_flipped_bit_is_refused(tmp_path):
    path = tmp_path / "config.json"
    value = {"version": 2, "name": "digits", "rows": [1, 2.5, None, True], "nested": {"a": "b", "10": 1, "9": 2}}
    checksum.write_json(path, value)
    assert checksum.read_json(path, unsealed=(1,)) == value
    raw = path.read_bytes()
    for position in range(len(raw)):
        for bit in range(8):
            path.write_bytes(flip(raw, position, bit))
            try:
                assert checksum.read_json(path, unsealed=(1,)) == value  # white space only
            except DataError:
                continue


def test_json_of_before_is_read_without_a_checksum(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"version": 1, "a": 3}))
    assert checksum.read_json(path, unsealed=(1,)) == {"version": 1, "a": 3}
    path.write_text(json.dumps({"version": 2, "a": 3}))
    with pytest.raises(DataError, match="checksum"):
        checksum.read_json(path, unsealed=(1,))


def test_archives_with_a_flipped_bit_are_refused(tmp_path):
    path = tmp_path / "last.ckpt"
    torch.save({"weights": torch.arange(50.0)}, path)
    assert not checksum.check_archive(path)
    checksum.seal_archive(path)
    assert checksum.check_archive(path)
    assert torch.equal(torch.load(path, weights_only=True)["weights"], torch.arange(50.0))
    raw = path.read_bytes()
    for damaged in flips(raw):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="damaged"):
            checksum.check_archive(path)
    with pytest.raises(DataError, match="comment"):
        path.write_bytes(raw)
        checksum.seal_archive(path)


def test_the_previous_generation_takes_over(tmp_path):
    path = tmp_path / "sum.safetensors"
    for number in range(3):
        save_tensors(path, "test", {"number": number}, {"x": torch.full((4,), float(number))}, keep_previous=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sum.previous.safetensors", "sum.safetensors"]

    def read(file):
        return load_tensors(file, ("test",))[1]["number"]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_newest(path, read) == 2
    raw = path.read_bytes()
    path.write_bytes(flip(raw, len(raw) - 2, 3))
    with pytest.warns(UserWarning, match="one before it"):
        assert read_newest(path, read) == 1
    save_tensors(path, "test", {"number": 3}, {"x": torch.zeros(4)}, keep_previous=True)
    assert read(previous_of(path)) == 1, "the damaged file must not become the previous generation"
    for file in (path, previous_of(path)):
        file.unlink()
        file.write_bytes(b"nothing")
    with pytest.raises(DataError, match="no safetensors"):
        read_newest(path, read)


def test_an_interrupted_rotation_keeps_a_generation(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "first")
    with pytest.raises(KeyboardInterrupt), replacing_twice(path) as temporary:
        temporary.write_text("second")
        raise KeyboardInterrupt
    assert path.read_text() == "first"


HOLD = """
import sys, time
from marquis.io.lock import exclusive
with exclusive(sys.argv[1], "a training"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_is_exclusive_and_dies_with_its_process(tmp_path):
    with exclusive(tmp_path, "a training"):
        pass
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(StorageError, match=rf"a training.*{other.pid}"), exclusive(tmp_path, "a training"):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    deadline = time.monotonic() + 5
    while True:
        try:
            with exclusive(tmp_path, "a training"):
                break
        except StorageError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


WRITE = """
import sys, time
from marquis.io.atomic import replacing
with replacing(sys.argv[1]) as temporary:
    temporary.write_text("half")
    print(temporary.name, flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks that a process's end releases")
@pytest.mark.parametrize("twice", [False, True])
def test_left_overs_of_a_killed_process_are_removed_by_the_next_write(tmp_path, twice):
    path = tmp_path / "a [1].txt"
    (tmp_path / ".part-other-1.txt").write_text("of another path")
    write = (lambda: save_with_previous(path)) if twice else (lambda: write_text(path, "whole"))
    with subprocess.Popen([sys.executable, "-c", WRITE, str(path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        left = tmp_path / other.stdout.readline().decode().strip()
        write()
        assert left.read_text() == "half", "a process that lives still writes to it"
        other.kill()
        other.wait()
    assert left.exists()
    write()
    names = {"a [1].txt", ".part-other-1.txt", *({"a [1].previous.txt"} if twice else ())}
    assert {p.name for p in tmp_path.iterdir()} == names
    remove_leftovers(tmp_path)
    assert not list(tmp_path.glob(".part-*"))


def save_with_previous(path):
    with replacing_twice(path) as temporary:
        temporary.write_text("whole")


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def unsupported(handle, operation):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    said = pytest.warns(UserWarning, match=r"\.lock cannot be locked \(No locks available\)")
    with said, exclusive(tmp_path, "a training"):
        write_text(tmp_path / "a.txt", "x")
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_ctrl_c_releases_the_lock_and_its_file(tmp_path):
    def opened() -> int:
        return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    before = opened()
    for _ in range(20):
        with pytest.raises(KeyboardInterrupt), exclusive(tmp_path, "a training"), replacing(tmp_path / "a.txt"):
            raise KeyboardInterrupt
        with pytest.raises(StorageError, match="another thread"), exclusive(tmp_path, "a"), exclusive(tmp_path, "a"):
            pass
    assert opened() == before and not list(tmp_path.iterdir())
    with exclusive(tmp_path, "a training"):
        pass
