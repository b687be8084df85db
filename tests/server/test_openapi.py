"""The OpenAPI document and the REST door say the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from starlette.routing import Route

from agent3.gateway.tool_texts import TOOLS
from agent3.server.demo import agents
from agent3.server.openapi import document
from agent3.server.rest import Rest
from tests.support.gateway import Hosted, hosted


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with hosted(tmp_path_factory.mktemp("openapi"), agents()) as running:
        yield running


def _routes(house: Hosted) -> list[Route]:
    server = house.server
    return Rest(server.services, server.registration).routes()


def test_every_route_is_in_the_document_and_the_other_way_round(house: Hosted) -> None:
    served = {(route.path, method) for route in _routes(house) for method in (route.methods or ()) if method != "HEAD"}
    written = {(path, method.upper()) for path, methods in document()["paths"].items() for method in methods}
    assert served - {("/openapi.json", "GET")} == written


def test_it_is_served_as_it_is(house: Hosted) -> None:
    reply = house.get("/openapi.json")
    assert reply.json == document()
    assert reply.json["openapi"] == "3.1.0"


def test_every_name_in_a_path_is_a_parameter_and_every_operation_is_described() -> None:
    for path, methods in document()["paths"].items():
        for operation in methods.values():
            named = [one["name"] for one in operation.get("parameters", []) if one["in"] == "path"]
            assert named == re.findall(r"{(\w+)}", path)
            assert operation["summary"]
            assert {"200", "default"} <= set(operation["responses"])


def test_every_reference_leads_somewhere_and_every_schema_is_one() -> None:
    whole = document()
    for schema in _schemas(whole):
        jsonschema_rs.validator_for({**schema, "components": whole["components"]})
    references = re.findall(r"'\$ref': '#/components/schemas/(\w+)'", repr(whole))
    assert references
    assert set(references) <= set(whole["components"]["schemas"])


def _schemas(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("schema"), dict):
            yield value["schema"]
        for one in value.values():
            yield from _schemas(one)
    elif isinstance(value, list):
        for one in value:
            yield from _schemas(one)


def test_bodies_are_the_inputs_of_the_tools() -> None:
    paths = document()["paths"]
    inputs = {text.name: text.input_schema for text in TOOLS}
    for path, tool in [
        ("/v1/search", "agent3_search"),
        ("/v1/call", "agent3_call"),
        ("/v1/feedback", "agent3_feedback"),
    ]:
        assert paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"] == inputs[tool]


def test_what_a_call_answers_fits_the_document(house: Hosted) -> None:
    schema = document()["components"]["schemas"]["CallResponse"]
    strict = jsonschema_rs.validator_for({**schema, "additionalProperties": False})
    failed = house.call("calculator", "1/0").json
    asked = house.call("pizza", "a pizza").json
    detached = house.call("echo", "x", prefer="respond-async").json
    for body in (house.call("echo", "x").json, failed, asked, detached):
        strict.validate(body)
    assert "202" in document()["paths"]["/v1/call"]["post"]["responses"]
    error = jsonschema_rs.validator_for(document()["components"]["schemas"]["Error"])
    error.validate(house.get("/v1/nothing").json)
