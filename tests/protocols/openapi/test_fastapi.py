"""A real FastAPI app on loopback, added by its address and called through the gateway."""

from __future__ import annotations

import base64
import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import Cookie, Depends, FastAPI, File, Form, Header, HTTPException, Query, Request, UploadFile
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from fastapi.security import APIKeyHeader, APIKeyQuery, HTTPBasic, HTTPBasicCredentials, HTTPBearer
from pydantic import BaseModel

from agent3.gateway import Caller, CallRequest
from agent3.model import LOCAL, Answer, Call, Done, Event, Failed, Needs, Outcome, Principal, value_of
from tests.support.gateway import Hosted, hosted
from tests.support.registration import add, remove, renew
from tests.support.services import Service, serving

TOKEN = "a-token-that-nobody-guesses-42"


class Size(enum.StrEnum):
    small = "small"
    large = "large"


class Topping(BaseModel):
    name: str
    grams: int = 10


class Pizza(BaseModel):
    """What is ordered."""

    name: str
    size: Size
    toppings: list[Topping] = []


class Order(BaseModel):
    id: int
    pizza: Pizza
    note: str | None = None


def make() -> FastAPI:
    app = FastAPI(title="Pizza shop", version="2.1", description="Orders pizza.")
    orders: dict[int, Order] = {}

    @app.get("/menu", summary="List the menu", tags=["menu"])
    def menu(size: Size | None = None, tags: Annotated[list[str], Query()] = [], limit: int = 10) -> dict[str, Any]:  # noqa: B006
        return {"size": size, "tags": tags, "limit": limit}

    @app.post("/orders/{customer}", status_code=201)
    def order(customer: str, pizza: Pizza, note: str | None = None) -> Order:
        made = Order(id=len(orders) + 1, pizza=pizza, note=f"{customer}: {note}")
        orders[made.id] = made
        return made

    @app.get("/orders/{order_id}")
    def get_order(order_id: int) -> Order:
        if order_id not in orders:
            raise HTTPException(404, f"There is no order {order_id}")
        return orders[order_id]

    @app.delete("/orders/{order_id}", status_code=204)
    def cancel_order(order_id: int) -> None:
        orders.pop(order_id, None)

    labels = ["Atlas", "Borea"]

    @app.get("/labels")
    def list_labels() -> list[str]:
        return labels

    @app.delete("/labels/{label}")
    def delete_label(label: str) -> list[str]:
        labels.remove(label)
        return labels

    @app.get("/who")
    def who(x_name: Annotated[str, Header()], session: Annotated[str | None, Cookie()] = None) -> dict[str, Any]:
        return {"name": x_name, "session": session}

    @app.post("/photo")
    async def photo(title: Annotated[str, Form()], file: UploadFile, more: list[UploadFile] = File(())) -> Any:  # noqa: B008
        content = await file.read()
        sizes = [len(await each.read()) for each in more]
        return {"title": title, "name": file.filename, "type": file.content_type, "size": len(content), "more": sizes}

    @app.post("/login")
    def login(user: Annotated[str, Form()], age: Annotated[int, Form()]) -> Any:
        return {"user": user, "age": age}

    @app.put("/text")
    async def text(request: Request) -> PlainTextResponse:
        return PlainTextResponse((await request.body()).decode().upper())

    @app.get("/picture", response_class=Response)
    def picture() -> Response:
        return Response(
            b"\x89PNG...", media_type="image/png", headers={"content-disposition": 'attachment; filename="p.png"'}
        )

    @app.get("/stream")
    def stream() -> StreamingResponse:
        pieces = (f'data: {{"n": {number}}}\n\n' for number in range(3))
        return StreamingResponse(pieces, media_type="text/event-stream")

    @app.get("/fail/{status}")
    def fail(status: int) -> Response:
        headers = {"retry-after": "7"} if status in (429, 503) else {}
        problem = {"type": "about:blank", "title": "It failed", "detail": "on purpose", "status": status}
        return JSONResponse(problem, status, headers, media_type="application/problem+json")

    @app.get("/away")
    def away() -> RedirectResponse:
        return RedirectResponse("http://other.example/there")

    @app.get("/moved")
    def moved() -> RedirectResponse:
        return RedirectResponse("/menu?limit=3")

    @app.get("/bearer")
    def bearer(given: Annotated[Any, Depends(HTTPBearer())]) -> Any:
        return {"ok": given.credentials == TOKEN, "echo": given.credentials}

    @app.get("/key")
    def key(given: Annotated[str, Depends(APIKeyHeader(name="X-Shop-Key"))]) -> Any:
        return {"ok": given == TOKEN}

    @app.get("/query-key")
    def query_key(given: Annotated[str, Depends(APIKeyQuery(name="api_key"))]) -> Any:
        return {"ok": given == TOKEN}

    @app.get("/basic")
    def basic(given: Annotated[HTTPBasicCredentials, Depends(HTTPBasic())]) -> Any:
        return {"user": given.username, "ok": given.password == TOKEN}

    return app


@pytest.fixture(scope="module")
def shop() -> Iterator[Service]:
    with serving(make()) as service:
        yield service


@pytest.fixture(scope="module")
def house(shop: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with pytest.MonkeyPatch.context() as patch, hosted(tmp_path_factory.mktemp("shop")) as made:
        patch.setenv("SHOP_TOKEN", TOKEN)
        patch.setenv("SHOP_LOGIN", f"ann:{TOKEN}")
        made.run(add(made.server, f"{shop.url}/openapi.json", credential="env:SHOP_TOKEN"))
        made.run(add(made.server, f"{shop.url}/openapi.json", "logins", credential="env:SHOP_LOGIN"))
        yield made


def call(made: Hosted, capability: str, agent: str = "pizza-shop", key: str | None = None, **given: Any) -> Outcome:
    request = CallRequest(agent=agent, capability=capability, input=given, key=key)
    outcome: Outcome = made.run(made.server.gateway.call(Caller(LOCAL), request))
    return outcome


def value(outcome: Outcome) -> Any:
    assert isinstance(outcome, Done), outcome
    return value_of(outcome.parts)


def failure(outcome: Outcome) -> Failed:
    assert isinstance(outcome, Failed), outcome
    return outcome


def name_of(made: Hosted, start: str) -> str:
    agent = made.run(made.server.directory.get("pizza-shop"))
    (found,) = [one.name for one in agent.capabilities if one.name.startswith(start)]
    return str(found)


def test_each_operation_is_a_capability_with_schemas_and_hints(house: Hosted) -> None:
    agent = house.run(house.server.directory.get("pizza-shop"))
    assert (agent.name, agent.version, agent.description) == ("Pizza shop", "2.1", "Orders pizza.")
    found = {one.name: one for one in agent.capabilities}
    menu = found["menu_menu_get"]
    assert (menu.description, menu.tags) == ("List the menu", ("menu",))
    assert (menu.hints.read_only, menu.hints.idempotent, menu.hints.consequential) == (True, True, False)
    order = found[name_of(house, "order_orders")]
    assert set(order.input_schema["properties"]) == {"customer", "note", "name", "size", "toppings"}
    assert order.input_schema["required"] == ["customer", "name", "size"]
    assert order.input_schema["$defs"]["Topping"]["properties"]["grams"]["default"] == 10
    assert order.output_schema is not None
    assert not order.hints.idempotent
    cancel = found[name_of(house, "cancel_order")]
    assert (cancel.hints.idempotent, cancel.hints.consequential) == (True, True)
    assert TOKEN not in str(agent)


def test_what_a_sentence_would_delete_is_confirmed_first(house: Hosted) -> None:
    def say(message: str) -> Outcome:
        request = CallRequest(agent="pizza-shop", capability=name_of(house, "delete_label"), message=message)
        outcome: Outcome = house.run(house.server.gateway.call(Caller(LOCAL), request))
        return outcome

    def answer(outcome: Outcome, yes: bool, label: str = "Atlas") -> Outcome:
        assert isinstance(outcome, Needs), outcome
        assert outcome.job is not None
        assert [(one.id, label in one.text) for one in outcome.questions] == [("agent3:confirm", True)]
        said = {"agent3:confirm": Answer(data=yes)}
        ended: Outcome = house.run(house.server.gateway.answer(Caller(LOCAL), outcome.job, said))
        return ended

    assert failure(answer(say("delete Atlas"), False)).code == "declined"
    assert failure(say("do not delete the label Atlas")).code == "declined"
    asked = say("delete Atlas")
    assert value(call(house, name_of(house, "list_labels"))) == ["Atlas", "Borea"]
    assert value(answer(asked, True)) == ["Borea"]
    # Also where nothing was guessed: it cannot be taken back.
    assert value(answer(say("delete the label Borea"), True, "Borea")) == []


def test_path_query_and_body_go_where_they_belong(house: Hosted, shop: Service) -> None:
    placed = call(
        house, name_of(house, "order_orders"), customer="Ann..x?&é", note="soon", name="Marinara", size="large",
        toppings=[{"name": "garlic"}],
    )  # fmt: skip
    body = value(placed)
    assert body["note"] == "Ann..x?&é: soon"
    assert body["pizza"] == {"name": "Marinara", "size": "large", "toppings": [{"name": "garlic", "grams": 10}]}
    assert value(call(house, name_of(house, "get_order"), order_id=body["id"])) == body
    assert value(call(house, name_of(house, "cancel_order"), order_id=body["id"])) is None
    assert value(call(house, "menu_menu_get", tags=["a b", "c&d"], size="small")) == {
        "size": "small",
        "tags": ["a b", "c&d"],
        "limit": 10,
    }


def test_headers_and_cookies_are_parameters_too(house: Hosted) -> None:
    assert value(call(house, "who_who_get", **{"x-name": "Ann", "session": "s 1"}))["name"] == "Ann"
    refused = failure(call(house, "who_who_get", **{"x-name": "Ann\r\nX-Evil: 1"}))
    assert (refused.code, refused.sent) == ("invalid_input", False)


def test_input_that_does_not_fit_is_never_sent(house: Hosted, shop: Service) -> None:
    before = shop.calls()
    for given in ({"size": "huge"}, {"limit": "many"}, {"unknown": 1}):
        assert failure(call(house, "menu_menu_get", **given)).code == "invalid_input"
    for customer in ("..", ".", ""):
        outcome = failure(call(house, name_of(house, "order_orders"), customer=customer, name="x", size="small"))
        assert (outcome.code, outcome.sent) == ("invalid_input", False), customer
    assert shop.calls() == before


def test_files_forms_and_texts_are_sent_as_the_document_says(house: Hosted) -> None:
    raw = bytes(range(256))
    given: dict[str, Any] = {
        "title": "Me",
        "file": {"data": base64.b64encode(raw).decode(), "name": "b c.png", "media_type": "image/png"},
    }
    assert value(call(house, "photo_photo_post", **given)) == {
        "title": "Me", "name": "b c.png", "type": "image/png", "size": 256, "more": []
    }  # fmt: skip
    more: dict[str, Any] = {"title": "T", "file": {"text": "hello"}, "more": [{"text": "1"}, {"text": "22"}]}
    assert value(call(house, "photo_photo_post", **more))["more"] == [1, 2]
    assert value(call(house, "login_login_post", user="ann & bob", age=7)) == {"user": "ann & bob", "age": 7}
    broken = failure(call(house, "photo_photo_post", title="T", file={"data": "%%%"}))
    assert (broken.code, broken.sent) == ("invalid_input", False)


def test_a_file_may_be_an_artifact_of_the_caller_and_of_no_other(house: Hosted) -> None:
    store = house.server.core.artifacts

    async def keep(owner: str) -> str:
        made = Call(id=owner, principal=Principal(owner), agent="a", capability="c")
        return await store.store(made, b"x" * 300, "notes.txt", "text/plain")

    own, other = house.run(keep("local")), house.run(keep("somebody"))
    assert value(call(house, "photo_photo_post", title="T", file={"artifact": own}))["size"] == 300
    refused = failure(call(house, "photo_photo_post", title="T", file={"artifact": other}))
    assert (refused.code, refused.sent) == ("not_found", False)


def test_answers_are_json_texts_and_files(house: Hosted) -> None:
    outcome = call(house, "picture_picture_get")
    assert isinstance(outcome, Done)
    (part,) = outcome.parts
    assert (part.raw, part.media_type, part.name) == (b"\x89PNG...", "image/png", "p.png")


def test_a_stream_is_heard_piece_by_piece(house: Hosted) -> None:
    heard: list[Event] = []
    caller = Caller(LOCAL, "library", heard.append)
    request = CallRequest(agent="pizza-shop", capability="stream_stream_get", input={})
    outcome = house.run(house.server.gateway.call(caller, request))
    assert value(outcome) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert [value_of(event.parts) for event in heard if event.kind == "artifact"] == [{"n": 0}, {"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    ("status", "code", "wait"),
    [
        (400, "invalid_request", None),
        (401, "target_refused", None),
        (403, "target_refused", None),
        (404, "not_found", None),
        (409, "conflict", None),
        (422, "invalid_input", None),
        (429, "rate_limited", 7.0),
        (500, "target_failed", None),
        (503, "unavailable", 7.0),
        (504, "timeout", None),
    ],
)
def test_each_failure_has_a_code_and_the_words_of_the_service(
    house: Hosted, status: int, code: str, wait: float | None
) -> None:
    request = CallRequest(agent="pizza-shop", capability=name_of(house, "fail_"), input={"status": status}, retries=0)
    failed = failure(house.run(house.server.gateway.call(Caller(LOCAL), request)))
    assert (failed.code, failed.retry_after, failed.asked) == (code, wait, True)
    assert failed.message == f"pizza-shop: It failed: on purpose (HTTP {status})"
    assert failed.data["status"] == status
    house.server.core.parts.breakers.circuits.clear()


def test_the_faults_that_fastapi_finds_are_told(house: Hosted) -> None:
    failed = failure(call(house, name_of(house, "get_order"), order_id=99))
    assert (failed.code, failed.message) == ("not_found", "pizza-shop: There is no order 99 (HTTP 404)")


def test_redirects_stay_at_the_service(house: Hosted) -> None:
    assert value(call(house, "moved_moved_get"))["limit"] == 3
    away = failure(call(house, "away_away_get"))
    assert away.code == "malformed_response"
    assert "redirects to another address" in away.message


def test_only_what_is_harmless_is_repeated(house: Hosted, shop: Service) -> None:
    before = shop.paths().count("GET /fail/503")
    request = CallRequest(agent="pizza-shop", capability=name_of(house, "fail_"), input={"status": 502}, retries=2)
    failure(house.run(house.server.gateway.call(Caller(LOCAL), request)))
    assert shop.paths().count("GET /fail/502") == 3
    assert shop.paths().count("GET /fail/503") == before
    house.server.core.parts.breakers.circuits.clear()


@pytest.mark.requirement("AC-27")
def test_the_credential_goes_the_way_of_each_operation_and_into_no_record(house: Hosted, shop: Service) -> None:
    assert value(call(house, "bearer_bearer_get")) == {"ok": True, "echo": "***"}
    assert value(call(house, "key_key_get")) == {"ok": True}
    assert value(call(house, "query_key_query_key_get")) == {"ok": True}
    assert value(call(house, "basic_basic_get", "logins")) == {"user": "ann", "ok": True}
    call(house, "menu_menu_get")
    assert not any("authorization" in headers for method, path, headers, _ in shop.requests if path == "/menu")
    assert all(TOKEN not in str(row) for table in ("calls", "agents", "jobs") for row in house.rows(table))


def test_without_a_credential_the_service_refuses_and_says_so(shop: Service, tmp_path: Path) -> None:
    with hosted(tmp_path) as made:
        made.run(add(made.server, shop.url))  # found below its address
        refused = failure(call(made, "bearer_bearer_get"))
        assert refused.code == "target_refused"
        assert refused.data["status"] in (401, 403)


def test_a_changed_document_is_noticed_and_one_that_moves_is_not_trusted(tmp_path: Path) -> None:
    app = FastAPI(title="Changing")

    @app.get("/one", operation_id="one")
    def one() -> int:
        return 1

    with serving(app) as service, hosted(tmp_path) as made:
        made.run(add(made.server, f"{service.url}/openapi.json", changes="trust"))

        @app.get("/two", operation_id="two")
        def two() -> int:
            return 2

        app.openapi_schema = None
        made.run(renew(made.server, service.url))
        assert value(call(made, "two", "changing")) == 2
        app.openapi_schema = {**app.openapi(), "servers": [{"url": "https://evil.example"}]}
        made.run(renew(made.server, service.url))
        agent = made.run(made.server.directory.get("changing"))
        assert agent.status == "suspended"
        assert "https://evil.example" in agent.meta["suspended"]["why"]
        made.run(remove(made.server, "changing"))
