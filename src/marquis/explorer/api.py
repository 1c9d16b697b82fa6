"""Serve the explorer's page and its requests over HTTP: a thin layer over `Workspace`."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import FastAPI, File, Path, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from marquis.errors import MarquisError
from marquis.explorer.assets import ASSETS, asset
from marquis.explorer.json_arrays import as_json
from marquis.explorer.workspace import Workspace

Number = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
Code = Annotated[list[Number], Field(min_length=1, max_length=4096)]
Row = Annotated[int, Field(ge=0, le=2**31)]
Model = Annotated[int, Field(ge=0, le=1)]
DataName = Literal["main", "second"]
PNG_TYPE, JSON_TYPE = "image/png", "application/json"
SLOW_AT_ONCE = 2
"""Answers that take long are computed so many at once; others wait, and are dropped if withdrawn meanwhile."""


class Problem(BaseModel):
    """Say in one line what went wrong."""

    error: str


class Question(BaseModel):
    """Hold what every request has: the number of the model. Unknown and misspelt fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: Model = 0


class Decode(Question):
    """Request the decoding of a code."""

    code: Code


class Background(Question):
    """Request a quantity on a grid of a plane."""

    quantity: Literal["std", "total_std", "density", "volume"]
    origin: Code
    u: Code
    v: Code
    box: Annotated[list[Number], Field(min_length=4, max_length=4)]
    size: Annotated[int, Field(ge=2, le=96)] = 32


class Explain(Question):
    """Request the explanation of one row."""

    row: Row
    data: DataName = "main"
    score: Annotated[str, Field(max_length=40)] = "nll"


class Order(Question):
    """Request the nearest points of a row in the order of their geodesic distance."""

    row: Row


class Between(Question):
    """Request the curves between two codes."""

    start: Code
    end: Code


class Impute(Question):
    """Request the imputation of a row of which some entries count as missing."""

    row: Row
    data: DataName = "main"
    missing: Annotated[list[Row], Field(max_length=1_000_000)]


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in {
        400: "The question cannot be answered.",
        403: "Another host or origin.",
        413: "The body is too large.",
        422: "The body is not what was expected.",
    }.items()
}


def make_app(workspace: Workspace) -> FastAPI:
    """Return the application; its interactive documentation is off, because that loads from elsewhere."""
    app = FastAPI(title="Marquis explorer", docs_url=None, redoc_url=None, openapi_url=None)
    app.router.redirect_slashes = False
    _add_problems(app)

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return Response(asset("index.html"), media_type="text/html; charset=utf-8")

    @app.get("/page/{name}", include_in_schema=False)
    def part(name: str) -> Response:
        if name not in ASSETS:  # a fixed list: no name of a request reaches the file system
            raise HTTPException(404)
        return Response(asset(name), media_type=ASSETS[name])

    slow = asyncio.Semaphore(SLOW_AT_ONCE)

    def answers(path: str, answer: Callable[[Any], Any], question: type[Question], *, quick: bool = False) -> None:
        async def endpoint(request: Request, body: Any) -> Response:
            async with contextlib.nullcontext() if quick else slow:
                if await request.is_disconnected():  # the page has withdrawn its question while it waited
                    return _problem(400, "withdrawn")
                return Response(await run_in_threadpool(lambda: as_json(answer(body))), media_type=JSON_TYPE)

        endpoint.__annotations__ = {"request": Request, "body": question, "return": Response}
        endpoint.__doc__ = question.__doc__
        app.post(path, responses=PROBLEMS, name=question.__name__)(endpoint)

    session = workspace.session
    answers("/api/decode", lambda q: session(q.model).decode(q.code), Decode, quick=True)
    answers("/api/background", lambda q: _background(workspace, q), Background)
    answers("/api/explain", lambda q: session(q.model).explain(workspace.row(q.row, q.data), q.score), Explain)
    answers("/api/order", lambda q: session(q.model).geodesic_order(q.row), Order)
    answers("/api/path", lambda q: session(q.model).path(q.start, q.end), Between)
    answers("/api/impute", lambda q: session(q.model).impute(workspace.row(q.row, q.data), q.missing), Impute)

    @app.get("/api/about", responses=PROBLEMS)
    def about() -> Response:
        """Return the models, codes, scores and data."""
        return Response(as_json(workspace.about()), media_type=JSON_TYPE)

    @app.get("/api/second", responses=PROBLEMS)
    def second() -> Response:
        """Return the second data set."""
        return Response(as_json(workspace.about_second()), media_type=JSON_TYPE)

    @app.post("/api/second", responses=PROBLEMS)
    def upload(file: Annotated[UploadFile, File()]) -> Response:
        """Take a file as the second data set."""
        workspace.read_second(file.filename or "", file.file.read())
        return Response(as_json(workspace.about_second()), media_type=JSON_TYPE)

    @app.get("/api/sheet/{data}/{number}", responses={**PROBLEMS, 200: {"content": {PNG_TYPE: {}}}})
    def sheet(data: DataName, number: Annotated[int, Path(ge=0, le=2**31)]) -> Response:
        """Return a sheet of thumbnails."""
        return Response(workspace.sheet(data, number), media_type=PNG_TYPE)

    return app


def _background(workspace: Workspace, question: Background) -> dict[str, Any]:
    low_u, high_u, low_v, high_v = question.box
    if not (low_u < high_u and low_v < high_v):
        raise RequestValidationError([{"loc": ("box",), "msg": "each low end is below its high end"}])
    vectors = (tuple(vector) for vector in (question.origin, question.u, question.v))
    values = workspace.session(question.model).background(
        question.quantity, *vectors, (low_u, high_u, low_v, high_v), question.size
    )
    return {"values": values}


def _add_problems(app: FastAPI) -> None:
    """Answer every failure with one clear line."""

    @app.exception_handler(MarquisError)
    def _refused(request: Request, problem: MarquisError) -> Response:
        return _problem(400, str(problem))

    @app.exception_handler(RequestValidationError)
    def _invalid(request: Request, problem: RequestValidationError) -> Response:
        first = problem.errors()[0]
        place = ".".join(str(part) for part in first.get("loc", ()) if part != "body")
        return _problem(422, f"{place}: {first['msg']}" if place else str(first["msg"]))

    @app.exception_handler(HTTPException)
    def _missing(request: Request, problem: HTTPException) -> Response:
        return _problem(problem.status_code, str(problem.detail), problem.headers)

    @app.exception_handler(Exception)
    def _unexpected(request: Request, problem: Exception) -> Response:
        traceback.print_exception(problem)
        return _problem(500, f"unexpected {type(problem).__name__}; the terminal shows where. Please report it")


def _problem(status: int, reason: str, headers: Any = None) -> Response:
    """Return an error response of one line."""
    line = " ".join(reason.split())[:500]
    return Response(as_json({"error": line}), status, headers=headers, media_type=JSON_TYPE)
