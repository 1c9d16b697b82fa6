"""The explorer over HTTP: every endpoint, bad bodies, other hosts and origins, many clients at once."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")

from marquis.errors import MarquisError, StorageError  # noqa: E402
from marquis.explorer import Server  # noqa: E402
from marquis.explorer.api import SLOW_AT_ONCE  # noqa: E402
from marquis.explorer.json_arrays import packed  # noqa: E402
from marquis.explorer.safety import MOST_JSON  # noqa: E402

PLANE = {"origin": [0, 0], "u": [1, 0], "v": [0, 1], "box": [-1, 1, -1, 1], "size": 4}
GOOD = {
    "decode": {"code": [0.0, 0.5]},
    "background": {"quantity": "std", **PLANE},
    "explain": {"row": 1, "score": "error"},
    "order": {"row": 1},
    "path": {"start": [0.0, 0.0], "end": [1.0, 1.0]},
    "impute": {"row": 1, "missing": [0, 1]},
}


@pytest.fixture(scope="module")
def client(served):
    with httpx.Client(base_url=served, timeout=60) as client:
        yield client


@pytest.mark.parametrize("name", GOOD)
def test_every_question_has_the_answer_of_the_session(client, workspace, name: str):
    answer = client.post(f"/api/{name}", json=GOOD[name])
    assert answer.status_code == 200, answer.text
    session = workspace.sessions[0]
    question = GOOD[name]
    if name == "background":
        vectors = (tuple(question[key]) for key in ("origin", "u", "v"))
        expected = {"values": session.background("std", *vectors, tuple(question["box"]), 4)}
    else:
        method = {"order": session.geodesic_order}.get(name) or getattr(session, name)
        expected = method(*question.values())
    assert answer.json() == json.loads(json.dumps(packed(expected)))


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("decode", {"code": [0.0]}, 400),
        ("decode", {"code": ["a", 0]}, 422),
        ("decode", {"code": [1e300, 0]}, 422),
        ("decode", {"code": [0, 0], "model": 1}, 400),
        ("decode", {"code": [0, 0], "unknown": 1}, 422),
        ("decode", {}, 422),
        ("decode", [], 422),
        ("decode", None, 422),
        ("background", {"quantity": "colour", **PLANE}, 422),
        ("background", {"quantity": "std", **PLANE, "box": [1, 0, 0, 1]}, 422),
        ("background", {"quantity": "std", **PLANE, "size": 10_000}, 422),
        ("background", {"quantity": "std", **PLANE, "u": [1, 0, 0]}, 400),
        ("explain", {"row": 100_000}, 400),
        ("explain", {"row": -1}, 422),
        ("explain", {"row": 1.5}, 422),
        ("explain", {"row": 0, "score": "unheard"}, 400),
        ("explain", {"row": 0, "data": "second"}, 400),
        ("explain", {"row": 0, "data": "../../etc"}, 422),
        ("order", {"row": 100_000}, 400),
        ("path", {"start": [0, 0], "end": [0]}, 400),
        ("impute", {"row": 0, "missing": [64]}, 400),
        ("impute", {"row": 0, "missing": [-1]}, 422),
    ],
)
def test_a_wrong_question_gets_one_clear_line(client, path: str, body, status: int):
    answer = client.post(f"/api/{path}", json=body)
    assert answer.status_code == status, answer.text
    problem = answer.json()["error"]
    assert problem and "\n" not in problem and "Traceback" not in problem


def test_bodies_that_are_no_json_or_too_large(client):
    headers = {"content-type": "application/json"}
    assert client.post("/api/decode", content=b"{", headers=headers).status_code == 422
    as_text = {"content-type": "text/plain"}
    assert client.post("/api/decode", content=b'{"code":[0,0]}', headers=as_text).status_code == 422
    assert client.post("/api/decode", content=b" " * (MOST_JSON + 1), headers=headers).status_code == 413

    def unannounced():  # chunked, without a length
        for _ in range(MOST_JSON // 2**16 + 2):
            yield b" " * 2**16

    assert client.post("/api/decode", content=unannounced(), headers=headers).status_code == 413
    assert client.post("/api/decode", json=GOOD["decode"]).status_code == 200  # and it still answers


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1"},
        {"host": "127.0.0.1:1"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:1"},
    ],
)
def test_other_hosts_and_origins_are_refused(client, headers):
    for answer in (client.get("/", headers=headers), client.post("/api/decode", json=GOOD["decode"], headers=headers)):
        assert answer.status_code == 403
        assert "error" in answer.json()


def test_its_own_page_may_ask(client, served):
    own = {"origin": served.rstrip("/")}
    assert client.post("/api/decode", json=GOOD["decode"], headers=own).status_code == 200
    named = served.replace("127.0.0.1", "localhost").rstrip("/")
    headers = {"host": named.removeprefix("http://"), "origin": named}
    assert client.get("/", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/page/../session.py", "/page/..%2fsession.py", "/page/%2e%2e/%2e%2e/errors.py", "/page/x.js", "/docs",
     "/redoc", "/openapi.json", "/etc/passwd", "/api/sheet/main/99", "/api/sheet/second/0", "/api/sheet/..%2f/0"],
)  # fmt: skip
def test_no_path_reaches_the_file_system(client, path: str):
    answer = client.get(path)
    assert answer.status_code in (400, 404, 422) and "error" in answer.json()


def test_the_page_and_its_parts_come_with_a_strict_policy(client):
    from marquis.explorer.assets import ASSETS

    for path in ("/", *(f"/page/{name}" for name in ASSETS)):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "//" not in answer.text.replace("// ", "").replace("http://www.w3.org", "") or path.endswith(".js")
    sheet = client.get("/api/sheet/main/0")
    assert sheet.headers["content-type"] == "image/png" and sheet.content.startswith(b"\x89PNG")


def uploaded(client, name: str, content: bytes):
    return client.post("/api/second", files={"file": (name, content)})


def as_npz(**arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def test_uploads(client, workspace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = workspace.points.rows[:30].transpose(0, 1, 3, 2)
    answer = uploaded(client, "turned.npz", as_npz(x=rows))
    assert answer.status_code == 200, answer.text
    assert answer.json()["rows"] == 30 and answer.json()["source"] == "turned.npz"
    assert client.get("/api/second").json()["rows"] == 30
    assert client.post("/api/explain", json={"row": 3, "data": "second"}).status_code == 200
    assert client.get("/api/sheet/second/0").status_code == 200
    bad = [
        ("a.exe", b"MZ"),
        ("a", b""),
        ("a.npz", b"no archive"),
        ("a.npy", b"\x93NUMPY\x01\x00"),
        ("a.csv", b""),
        ("a.csv", b"a,b\n1,2\n"),
        ("../../evil.npz", b"x"),
        ("small.npz", as_npz(x=np.zeros((3, 1, 4, 4), np.float32))),
        ("pickle.npy", np.lib.format.magic(1, 0) + b"v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"),
    ]
    for name, content in bad:
        answer = uploaded(client, name, content)
        assert answer.status_code == 400, (name, answer.text)
        problem = answer.json()["error"]
        assert "/tmp" not in problem and "upload." not in problem, problem
    assert client.post("/api/second", data={"file": "text"}).status_code == 422
    assert client.get("/api/second").json()["rows"] == 30  # what was there stays
    assert list(tmp_path.iterdir()) == []
    workspace.second = None


def test_twenty_clients_at_once_get_right_answers(served, workspace):
    session = workspace.sessions[0]
    expected = [json.loads(json.dumps(packed(session.decode(code)))) for code in session.codes[:20]]

    def ask(k: int):
        with httpx.Client(base_url=served, timeout=60) as client:
            return [client.post("/api/decode", json={"code": session.codes[k].tolist()}).json() for _ in range(5)]

    with ThreadPoolExecutor(20) as pool:
        for k, answers in enumerate(pool.map(ask, range(20))):
            assert all(answer == expected[k] for answer in answers)


def test_addresses_that_are_refused(workspace, served):
    for host in ("0.0.0.0", "::", "example.com", ""):
        with pytest.raises(MarquisError, match="address"):
            Server(workspace, host=host)
    with pytest.raises(MarquisError, match="port"):
        Server(workspace, port=70_000)
    with pytest.raises(StorageError, match="cannot be opened"):
        Server(workspace, port=int(served.rsplit(":", 1)[1].rstrip("/")))


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_the_schema_is_kept_whatever_is_asked(workspace, served, mode: str):
    """Schemathesis: no server error, only documented statuses and contents, for right and wrong questions."""
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks as of_schema

    from marquis.explorer.api import make_app

    schema = schemathesis.openapi.from_dict(make_app(workspace).openapi())
    checks = [
        not_a_server_error,
        of_schema.status_code_conformance,
        of_schema.content_type_conformance,
        of_schema.response_schema_conformance,
    ]
    generation = schemathesis.GenerationMode(mode)
    quick = {"deadline": None, "database": None, "derandomize": True, "phases": [Phase.generate]}
    requested = set()
    for result in schema.get_all_operations():
        operation = result.ok()
        if mode == "negative" and operation.method == "get" and not operation.path_parameters:
            continue  # nothing can be wrong about it

        @settings(max_examples=6, suppress_health_check=list(HealthCheck), **quick)
        @given(case=operation.as_strategy(generation_mode=generation))
        def ask(case):
            case.call_and_validate(base_url=served.rstrip("/"), checks=checks)

        ask()
        requested.add(operation.label)
    assert len(requested) >= (10 if mode == "positive" else 8), requested
    workspace.second = None


def test_ctrl_c_ends_the_command_cleanly(digits_run):
    command = [sys.executable, "-m", "marquis", "explore", str(digits_run), "--no-browser", "--rows", "20"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        for _ in range(100):
            try:
                assert httpx.get(url).status_code == 200
                break
            except httpx.ConnectError:
                time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == 0 and out.strip() == "stopped"
    assert "Traceback" not in errors


def test_questions_that_were_withdrawn_are_not_computed(workspace, served, monkeypatch):
    """A page that selects point after point does not leave a queue of work behind."""
    session, requested, going = workspace.sessions[0], [], threading.Event()

    def slow(row: int):
        requested.append(row)
        going.wait(20)
        return {"rows": np.zeros(0), "geodesic": np.zeros(0), "euclidean": np.zeros(0)}

    monkeypatch.setattr(session, "geodesic_order", slow)

    def ask(row: int, patience: float) -> None:
        with contextlib.suppress(httpx.ReadTimeout), httpx.Client(base_url=served, timeout=patience) as client:
            client.post("/api/order", json={"row": row})

    with ThreadPoolExecutor(8) as pool:
        first = [pool.submit(ask, row, 20) for row in range(SLOW_AT_ONCE)]
        while len(requested) < SLOW_AT_ONCE:
            time.sleep(0.01)
        for withdrawn in [pool.submit(ask, row, 0.3) for row in range(10, 14)]:
            withdrawn.result()
        with httpx.Client(base_url=served, timeout=20) as client:  # a quick question does not wait behind slow ones
            assert client.post("/api/decode", json=GOOD["decode"]).status_code == 200
        last = pool.submit(ask, 99, 20)
        time.sleep(0.2)
        going.set()
        for each in (*first, last):
            each.result()
    assert sorted(requested) == [*range(SLOW_AT_ONCE), 99]
