"""Odd documents of 3.0 and 3.1: what is read of them, what is left out and said, and what is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent3 import schema
from agent3.errors import Agent3Error, LoopDetected, MalformedResponse, SetupError, TooLarge
from agent3.model import Agent, Capability, Route
from agent3.protocols.openapi import document as document_reader
from agent3.protocols.openapi.document import parse
from agent3.protocols.openapi.operations import MOST_OPERATIONS, Operation, describe
from tests.support.gateway import hosted
from tests.support.registration import add
from tests.support.services import serving

OK = {"200": {"description": "ok"}}


def document(paths: dict[str, Any], version: str = "3.1.0", **more: Any) -> dict[str, Any]:
    servers = [{"url": "https://api.example/v1"}]
    return {"openapi": version, "info": {"title": "Odd", "version": "7"}, "servers": servers, "paths": paths, **more}


def read(given: Any, address: str | None = None, **route: Any) -> Agent:
    body = given if isinstance(given, bytes) else json.dumps(given).encode()
    return describe(parse(body, "odd"), Route("openapi", address or "", **route), address)


def one(given: Any, **route: Any) -> Capability:
    (found,) = read(given, **route).capabilities
    return found


def plan(capability: Capability) -> Operation:
    return msgspec.convert(capability.routes[0].meta["operation"], Operation)


def test_names_come_from_ids_or_paths_and_are_unique() -> None:
    paths = {
        "/pets/{petId}": {
            "parameters": [{"name": "petId", "in": "path", "required": True, "schema": {"type": "string"}}],
            "get": {"responses": OK},
            "delete": {"operationId": "same", "responses": OK},
        },
        "/a": {"get": {"operationId": "same", "responses": OK}, "post": {"operationId": "sa me/é", "responses": OK}},
        "/b": {"get": {"operationId": "", "responses": OK}, "trace": {"responses": OK}, "x-note": {}},
        "x-extension": {"get": {"responses": OK}},
    }
    names = [capability.name for capability in read(document(paths)).capabilities]
    assert names == ["get_pets_petId", "same", "same_2", "sa_me", "get_b"]


def test_callbacks_webhooks_and_links_are_for_others() -> None:
    operation = {
        "operationId": "subscribe",
        "callbacks": {"onEvent": {"{$request.body#/url}": {"post": {"responses": OK}}}},
        "responses": {"200": {"description": "ok", "links": {"next": {"operationId": "subscribe"}}}},
    }
    webhooks = {"newPet": {"post": {"responses": OK}}}
    assert one(document({"/s": {"post": operation}}, webhooks=webhooks)).name == "subscribe"
    with pytest.raises(MalformedResponse, match="no operation that can be called"):
        read({"openapi": "3.1.0", "info": {"title": "Hooks", "version": "1"}, "webhooks": webhooks})


def test_names_that_clash_get_names_of_their_own() -> None:
    parameters = [
        {"name": "id", "in": "query", "schema": {"type": "integer"}},
        {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}},
        {"name": "id", "in": "header", "schema": {"type": "string"}},
        {"name": "Authorization", "in": "header", "schema": {"type": "string"}},
    ]
    body = {"type": "object", "properties": {"id": {"type": "boolean"}, "body": {"type": "string"}}, "required": ["id"]}
    operation = {
        "parameters": parameters,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": OK,
    }
    found = one(document({"/x/{id}": {"put": operation}}))
    assert set(found.input_schema["properties"]) == {"id", "id_query", "id_header", "id_body", "body"}
    assert found.input_schema["required"] == ["id", "id_body"]
    request = plan(found)
    assert [(one.place, one.key) for one in request.parameters] == [
        ("path", "id"),
        ("query", "id_query"),
        ("header", "id_header"),
    ]
    assert request.body is not None
    assert request.body.fields == {"id_body": "id", "body": "body"}


def test_the_words_of_3_0_become_json_schema() -> None:
    properties = {
        "age": {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "nullable": True, "example": 7},
        "size": {"type": "string", "enum": ["s", "l"], "nullable": True},
        "pet": {"nullable": True, "allOf": [{"$ref": "#/components/schemas/Pet"}]},
        "id": {"type": "string", "readOnly": True},
        "secret": {"type": "string", "writeOnly": True},
        "odd": {"type": "any", "required": True, "minLength": "x", "x-note": 1, "xml": {}},
    }
    body = {"type": "object", "properties": properties, "required": ["age", "id", "secret"]}
    operation = {
        "requestBody": {"required": True, "content": {"application/json; charset=utf-8": {"schema": body}}},
        "responses": {"200": {"description": "ok", "content": {"application/json": {"schema": body}}}},
    }
    components = {"schemas": {"Pet": {"type": "object", "properties": {"name": {"type": "string"}}}}}
    found = one(document({"/x": {"post": operation}}, "3.0.3", components=components))
    made = found.input_schema["properties"]
    assert made["age"] == {"type": ["integer", "null"], "exclusiveMinimum": 0, "examples": [7]}
    assert made["size"]["enum"] == ["s", "l", None]
    assert made["pet"]["anyOf"][1] == {"type": "null"}
    assert made["odd"] == {}
    assert "id" not in made
    assert found.input_schema["required"] == ["age", "secret"]
    assert found.output_schema is not None
    assert found.output_schema["required"] == ["age", "id"]
    check = schema.compile(found.input_schema)
    assert check.valid({"age": None, "secret": "x", "pet": None})
    assert not check.valid({"age": 0, "secret": "x"})


def test_references_are_followed_kept_and_recursive() -> None:
    node = {
        "type": "object",
        "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/components/schemas/Node"}},
        "required": ["value"],
    }
    components = {
        "schemas": {"Node": node, "a/b~c": {"type": "string"}, "Alias": {"$ref": "#/components/schemas/Node"}},
        "parameters": {"Limit": {"name": "limit", "in": "query", "schema": {"$ref": "#/components/schemas/a~1b~0c"}}},
        "requestBodies": {
            "Tree": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Alias"}}}}
        },
        "responses": {"Tree": {"description": "a tree", "content": {"application/json": {"schema": node}}}},
        "pathItems": {"Trees": {"post": {
            "operationId": "grow",
            "parameters": [{"$ref": "#/components/parameters/Limit"}],
            "requestBody": {"$ref": "#/components/requestBodies/Tree"},
            "responses": {"2XX": {"$ref": "#/components/responses/Tree"}},
        }}},
    }  # fmt: skip
    found = one(document({"/trees": {"$ref": "#/components/pathItems/Trees"}}, components=components))
    check = schema.compile(found.input_schema)
    assert check.valid({"limit": "x", "body": {"value": 1, "next": {"value": 2, "next": {"value": 3}}}})
    assert not check.valid({"body": {"value": 1, "next": {"value": "two"}}})
    assert found.output_schema is not None


@pytest.mark.parametrize(
    ("paths", "left"),
    [
        ({"/a": {"get": {"parameters": [{"$ref": "#/components/parameters/Gone"}]}}}, "does not exist"),
        ({"/a": {"post": {"requestBody": {"$ref": "other.yaml#/Body"}}}}, "outside the document"),
        ({"/a": {"$ref": "#/paths/~1a"}}, "circular"),
        ({"/a/{id}": {"get": {}}}, "which is not a parameter"),
        ({"/a": {"get": {"parameters": [{"name": "x", "in": "body"}]}}}, "in 'body'"),
        ({"/a": {"get": {"parameters": [{"name": "x", "in": "path", "style": "form"}]}}}, "not valid in a path"),
    ],
)
def test_an_operation_that_cannot_be_called_rightly_is_left_out_and_said(paths: dict[str, Any], left: str) -> None:
    agent = read(document({**paths, "/fine": {"get": {"operationId": "fine", "responses": OK}}}))
    assert [one.name for one in agent.capabilities] == ["fine"]
    (why,) = agent.card["leftOut"]
    assert left in why


def test_a_broken_schema_admits_anything_and_is_said() -> None:
    operation = {"parameters": [{"name": "q", "in": "query", "schema": {"$ref": "#/components/schemas/Gone"}}]}
    agent = read(document({"/a": {"get": {**operation, "responses": OK}}}))
    assert agent.capabilities[0].input_schema["properties"] == {"q": {}}
    assert "does not exist" in agent.card["simplified"][0]


def test_unions_discriminators_and_files_are_kept() -> None:
    union = {
        "oneOf": [{"$ref": "#/components/schemas/Cat"}, {"$ref": "#/components/schemas/Dog"}],
        "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/components/schemas/Cat"}},
    }
    schemas = {
        kind: {"type": "object", "properties": {"kind": {"const": kind.lower()}}, "required": ["kind"]}
        for kind in ("Cat", "Dog")
    }
    body = {"required": True, "content": {"application/json": {"schema": union}}}
    found = one(document({"/p": {"post": {"requestBody": body, "responses": OK}}}, components={"schemas": schemas}))
    check = schema.compile(found.input_schema)
    assert check.valid({"body": {"kind": "dog"}})
    assert not check.valid({"body": {"kind": "cow"}})
    raw = {"required": True, "content": {"application/octet-stream": {}, "application/pdf": {}}}
    assert plan(one(document({"/p": {"put": {"requestBody": raw, "responses": OK}}}))).body is not None


def test_a_huge_enum_and_a_deep_schema_are_simplified_and_still_checked() -> None:
    deep: dict[str, Any] = {"type": "object", "properties": {"leaf": {"type": "integer"}}}
    for _ in range(60):
        deep = {"type": "object", "properties": {"inner": deep}}
    choices = [f"v{number}" * 9 for number in range(9_000)]
    parameters = [{"name": "code", "in": "query", "schema": {"type": "string", "enum": choices}}]
    body = {"required": True, "content": {"application/json": {"schema": deep}}}
    agent = read(document({"/p": {"post": {"parameters": parameters, "requestBody": body, "responses": OK}}}))
    found = agent.capabilities[0]
    assert len(json.dumps(found.input_schema)) < 64 << 10
    assert "One of 9000 values" in found.input_schema["properties"]["code"]["description"]
    check = schema.compile(found.input_schema)
    assert check.valid({"code": "v1", "inner": {"inner": {}}})
    assert not check.valid({"code": 7})
    assert agent.card["simplified"]


def test_servers_are_resolved_and_their_variables_filled() -> None:
    paths = {
        "/a": {"get": {"operationId": "a", "responses": OK}},
        "/b": {"servers": [{"url": "../other"}], "get": {"operationId": "b", "responses": OK}},
        "/c": {"get": {"operationId": "c", "servers": [{"url": "//cdn.example/x/"}], "responses": OK}},
    }
    variables = {"region": {"default": "eu", "enum": ["eu", "us"]}, "version": {"default": "v2"}}
    given = document(paths)
    given["servers"] = [{"url": "https://{region}.api.example/{version}", "variables": variables}]
    found = {
        one.name: one.routes[0].address for one in read(given, "https://docs.example/spec/openapi.json").capabilities
    }
    assert found == {
        "a": "https://eu.api.example/v2",
        "b": "https://docs.example/other",
        "c": "https://cdn.example/x",
    }
    given["servers"] = []
    paths.pop("/b")
    paths.pop("/c")
    assert one(given, address="http://h:1/docs/openapi.json").routes[0].address == "http://h:1"
    with pytest.raises(SetupError, match="not an absolute address"):
        read(given)
    for url in ("https://evil.example/${HOME}", "https://u:pass@evil.example"):
        given["servers"] = [{"url": url}]
        with pytest.raises(SetupError):
            read(given)


def test_only_the_host_of_the_document_is_vouched_for() -> None:
    given = document({"/a": {"get": {"responses": OK}}})
    given["servers"] = [{"url": "http://10.0.0.7/internal"}]
    named = {"registered": True}
    assert "registered" not in one(given, address="https://docs.example/openapi.json", meta=named).routes[0].meta
    given["servers"] = [{"url": "/v1"}]
    assert one(given, address="http://127.0.0.1:8/openapi.json", meta=named).routes[0].meta["registered"]
    assert "registered" not in one(given, address="http://127.0.0.1:8/openapi.json").routes[0].meta


@pytest.mark.parametrize(
    ("schemes", "security", "credential", "expected"),
    [
        ({"k": {"type": "apiKey", "in": "header", "name": "X-Key"}}, [{"k": []}], None, "apiKey"),
        ({"b": {"type": "http", "scheme": "bearer"}}, [{"both": [], "b": []}, {"b": []}], None, "http"),
        ({"b": {"type": "http", "scheme": "bearer"}}, [{}, {"b": []}], None, "http"),
        ({"b": {"type": "http", "scheme": "digest"}}, [{"b": []}], None, "plain"),
        ({"b": {"type": "http", "scheme": "bearer"}}, [], None, "none"),
        ({}, None, None, "plain"),
        (
            {"a": {"type": "http", "scheme": "basic"}, "k": {"type": "apiKey", "in": "query", "name": "key"}},
            [{"a": []}, {"k": []}],
            "k",
            "apiKey",
        ),
        ({"a": {"type": "http", "scheme": "basic"}, "k": {"type": "apiKey", "in": "query", "name": "key"}},
         [{"a": []}], "k", "none"),
    ],
)  # fmt: skip
def test_one_credential_goes_by_the_scheme_that_fits(
    schemes: dict[str, Any], security: Any, credential: str | None, expected: str
) -> None:
    given = document({"/a": {"get": {"responses": OK}}}, components={"securitySchemes": schemes})
    if security is not None:
        given["security"] = security
    meta = {"secret_header": credential} if credential else {}
    route = one(given, credential="env:KEY", meta=meta).routes[0]
    scheme = msgspec.convert(route.meta["operation"], Operation).scheme
    found = "none" if route.meta.get("open") else "plain" if scheme is None else scheme["type"]
    assert found == expected


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{", "cannot|readable"),
        (b"<html></html>", "answer with an OpenAPI document"),
        (b'{"name": "x"}', "answer with an OpenAPI document"),
        (b'{"swagger": "2.0"}', "Swagger 2.0"),
        (b'{"openapi": "4.0.0"}', "'4.0.0'"),
        (b"openapi: 3.1.0\ninfo: [", "readable"),
        (b"openapi: 3.1.0\na: &a [x]\nb: *c\n", "readable"),
        (b"openapi: 3.1.0\na: " + b"[" * 100_000, "readable"),
        (b"\n" * 65_536, "answer with an OpenAPI document"),
    ],
)
def test_what_is_no_document_is_refused_and_said(body: bytes, why: str) -> None:
    with pytest.raises(MalformedResponse, match=why):
        parse(body, "it")


def test_documents_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_reader, "_YAML_SECONDS", 240.0)  # a starved machine has been seen to need 120
    bomb = b"openapi: 3.1.0\na: &a [x, x, x, x, x, x, x, x, x]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True):
        bomb += f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n".encode()
    with pytest.raises(TooLarge):
        parse(bomb, "it")
    with pytest.raises(TooLarge):
        parse(b'{"openapi": "3.1.0", "a": ' + b"[" * 300 + b"]" * 300 + b"}", "it")
    with pytest.raises(TooLarge):
        parse(b'{"openapi": "3.1.0"' + b" " * (17 << 20) + b"}", "it")
    with pytest.raises(TooLarge):
        parse(b'{"openapi": "3.1.0", "a": [' + b"1," * 1_000_000 + b"1]}", "it")
    paths: dict[str, Any] = {f"/p{number}": {"get": {}} for number in range(MOST_OPERATIONS + 1)}
    with pytest.raises(TooLarge, match="operations"):
        read(document(paths))


KEYS = st.sampled_from(
    "paths get post parameters name in schema type properties required items $ref allOf oneOf enum nullable default "
    "requestBody content application/json multipart/form-data responses 200 components schemas servers url variables "
    "security securitySchemes /a /a/{b} x description example format style explode tags operationId".split()
)
WORDS = st.sampled_from(
    ["path", "query", "b", "object", "string", "array", "#/components/schemas/x", "#", "#/paths", "{b}"]
)
JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=6)),
    max_leaves=40,
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(KEYS, JUNK, max_size=8),
    st.dictionaries(KEYS, JUNK, max_size=6),
    JUNK,
    st.booleans(),
)
def test_any_junk_is_an_agent_or_a_clear_refusal(
    content: dict[str, Any], operation: dict[str, Any], body: Any, old: bool
) -> None:
    taking = {"requestBody": {"required": True, "content": {"application/json": {"schema": body}}}}
    asking = {"parameters": [{"name": "q", "in": "query", "schema": body}]}
    paths = {"/a/{b}": {"get": operation}, "/c": {"get": {**operation, **asking}, "post": taking}}
    given = {**content, "openapi": "3.0.1" if old else "3.1.0", "paths": paths}
    try:
        agent = read(given, "https://h.example/openapi.json", credential="env:KEY")
    except Agent3Error:
        return
    for capability in agent.capabilities:
        schema.compile(capability.input_schema)
        if capability.output_schema is not None:
            schema.compile(capability.output_schema)


YAML = """
openapi: 3.0.3
info: {title: Clock, version: 1.0}
servers: [{url: "SERVER"}]
paths:
  /time/{zone}:
    get:
      operationId: time
      parameters:
        - {name: zone, in: path, required: true, schema: {type: string}}
      responses:
        200: {description: ok, content: {text/plain: {}}}
"""


def test_a_file_of_yaml_or_json_is_added_and_a_website_is_still_one(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}
        await send(head)
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    with serving(app) as service, hosted(tmp_path) as made:
        file = tmp_path / "clock.yaml"
        file.write_text(YAML.replace("SERVER", service.url))
        agent = made.run(add(made.server, str(file)))
        assert (agent.id, agent.source) == ("clock", service.url)
        answer = made.call("clock", "Europe/Rome").json
        assert answer["result"] == "/time/Europe/Rome"
        (tmp_path / "other.json").write_text(json.dumps(document({"/a": {"get": {"responses": OK}}})))
        assert made.run(add(made.server, str(tmp_path / "other.json"))).id == "odd"
        (tmp_path / "old.json").write_text('{"swagger": "2.0", "info": {}}')
        with pytest.raises(SetupError, match="Swagger"):
            made.run(add(made.server, str(tmp_path / "old.json")))


def test_a_gateway_does_not_add_itself(tmp_path: Path) -> None:
    with hosted(tmp_path) as made, pytest.raises(LoopDetected, match="is this gateway itself"):
        made.run(add(made.server, f"{made.url}/openapi.json"))


def test_reading_a_large_document_does_not_hold_the_event_loop() -> None:
    from agent3.protocols.openapi.connector import OpenAPIConnector

    paths = {f"/p{number}": {"get": {"operationId": f"op{number}", "responses": OK}} for number in range(500)}
    body = json.dumps(document(paths)).encode()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})

    async def main(url: str) -> int:
        connector = OpenAPIConnector()
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        agent = await connector.describe(f"{url}/openapi.json")
        ticking.cancel()
        await connector.aclose()
        assert len(agent.capabilities) == 500
        return turns

    with serving(app) as service:
        assert asyncio.run(main(service.url)) > 10, "other work went on meanwhile"
