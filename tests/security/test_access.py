"""Who may call what: the first rule that fits decides."""

from __future__ import annotations

import pytest

from agent3.model import LOCAL, Principal, Route
from agent3.security.access import OPERATE, Access, may_operate
from agent3.settings import Rule

ALICE, BOB = Principal("alice", scopes=frozenset({"admin"})), Principal("bob")
ROUTES = (Route("mcp", "m"), Route("a2a", "a"), Route("mcp", "n"))


def allowed(rules: list[Rule], principal: Principal = ALICE, agent: str = "pizza", capability: str = "order") -> bool:
    return Access(rules).allows(principal, agent, capability, "mcp")


def test_without_rules_everything_is_allowed_and_with_some_only_what_they_say() -> None:
    assert allowed([])
    assert not allowed([Rule("allow", agent="other")])
    assert allowed([Rule("allow", agent="pizza")])


def test_the_first_rule_that_fits_decides() -> None:
    assert not allowed([Rule("deny", principal="alice"), Rule("allow")])
    assert allowed([Rule("allow", principal="alice"), Rule("deny")])
    assert allowed([Rule("deny", principal="bob"), Rule("allow")])


@pytest.mark.parametrize(
    ("rule", "fits"),
    [
        (Rule("allow", principal="al*"), True),
        (Rule("allow", principal="a?ice"), True),
        (Rule("allow", principal="Alice"), False),
        (Rule("allow", principal="alic"), False),
        (Rule("allow", agent="p*", capability="ord*"), True),
        (Rule("allow", agent="p*", capability="pay"), False),
        (Rule("allow", protocol="a2a"), False),
        (Rule("allow", scope="admin"), True),
        (Rule("allow", scope="root"), False),
        (Rule("allow", scope="adm*"), False),
    ],
)
def test_patterns_fit_whole_words_and_scopes_exactly(rule: Rule, fits: bool) -> None:
    assert allowed([rule]) is fits


def test_a_scope_that_is_missing_passes_the_rule_by() -> None:
    rules = [Rule("allow", scope="admin"), Rule("deny")]
    assert allowed(rules, ALICE)
    assert not allowed(rules, BOB)
    also_bob = Principal("bob", scopes=frozenset({"admin"}))
    access = Access(rules)
    assert not access.allows(BOB, "pizza", "order", "mcp")
    assert access.allows(also_bob, "pizza", "order", "mcp"), "what is remembered is remembered with the scopes"


def test_routes_are_narrowed_in_their_order() -> None:
    assert Access([]).narrow(BOB, "x", "y", ROUTES) is ROUTES
    assert Access([Rule("allow")]).narrow(BOB, "x", "y", ROUTES) is ROUTES
    assert Access([Rule("deny", protocol="a2a"), Rule("allow")]).narrow(BOB, "x", "y", ROUTES) == (ROUTES[0], ROUTES[2])
    assert Access([Rule("deny")]).narrow(BOB, "x", "y", ROUTES) == ()


def test_names_of_strangers_do_not_pile_up() -> None:
    access = Access([Rule("deny", principal="stranger 5"), Rule("allow")])
    for number in range(12_000):
        access.allows(Principal(f"stranger {number}"), "a", "b", "mcp")
    assert access._match.cache_info().currsize <= 10_000
    assert not access.allows(Principal("stranger 5"), "a", "b", "mcp")


def test_a_rule_may_look_at_arguments() -> None:
    access = Access(
        [
            Rule("deny", capability="pay", arguments={"country": "XX"}),
            Rule("allow", capability="pay", arguments={"amount": "<= 100"}),
            Rule("see", capability="pay"),
        ]
    )
    route = (Route("mcp", "x"),)
    assert access.allows(BOB, "bank", "pay", "mcp"), "with certain arguments"
    assert access.shows(BOB, "bank", "pay", route)
    assert access.looks_at_arguments(BOB, "bank", "pay", route)
    assert not access.looks_at_arguments(BOB, "bank", "other", route)
    for given, allowed in (
        ({"amount": 100}, True),
        ({"amount": 101}, False),
        ({"amount": "50"}, True),
        ({"amount": "fifty"}, False),
        ({"amount": [1, 2]}, True),
        ({}, False),
        ("pay 5", False),
        (None, False),
        ({"amount": 5, "country": "XX"}, False),
        ({"amount": 5, "country": ["DE", "XX"]}, False),
        ({"amount": 5, "country": {"name": "XX"}}, False),
        ({"amount": float("nan")}, False),
    ):
        assert bool(access.narrow(BOB, "bank", "pay", route, given)) is allowed, given


@pytest.mark.parametrize(
    "given",
    [
        {"customer.country": "DE", "customer": {"country": "XX"}},
        {"customer": [{"country": "DE"}, {"country": "XX"}]},
        {"customer": '{"country": "XX"}'},
        {"customer": {"country": ["DE", ["XX"]]}},
        {"customer": {"country": "DE"}, "account": 12345.0},
        {"customer": {"country": "DE"}, "account": 12345},
    ],
)
def test_no_other_way_to_write_an_argument_passes_what_forbids_it(given: dict[str, object]) -> None:
    rules = [
        Rule("deny", arguments={"customer.country": "XX"}),
        Rule("deny", arguments={"account": "= 12345"}),
        Rule("allow"),
    ]
    route = (Route("mcp", "x"),)
    assert Access(rules).narrow(BOB, "bank", "pay", route, given) == ()
    assert Access(rules).narrow(BOB, "bank", "pay", route, {"customer": {"country": "DE"}, "account": 1}) is route


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({"mail": {"to": ["a@ours", "b@ours"]}}, True),
        ({"mail": {"to": ["a@ours", "b@theirs"]}}, False),
        ({"mail": {"to": ["a@ours", {"name": "b@theirs"}]}}, False),
        ({"mail": [{"to": "a@ours"}, {"to": "b@theirs"}]}, False),
        ({"mail": [{"to": "a@ours"}, {}]}, False),
        ({"mail": {"to": "b@theirs"}, "mail.to": "a@ours"}, False),
        ({"mail": {"to": []}}, False),
        ({"mail": {"to": ["a@ours"] * 1_001}}, False),
    ],
)
def test_what_allows_asks_every_item_of_a_list(given: dict[str, object], allowed: bool) -> None:
    access = Access([Rule("allow", arguments={"mail.to": "*@ours"})])
    assert bool(access.narrow(BOB, "post", "send", (Route("mcp", "x"),), given)) is allowed


def test_what_may_be_seen_is_listed_and_not_callable() -> None:
    access = Access([Rule("see", agent="bank"), Rule("allow")])
    route = (Route("mcp", "x"),)
    assert access.shows(BOB, "bank", "pay", route)
    assert access.narrow(BOB, "bank", "pay", route) == ()
    assert access.narrow(BOB, "shop", "buy", route) is route


def test_a_rule_may_be_for_one_tenant() -> None:
    access = Access([Rule("allow", tenant="blue", agent="blue-*"), Rule("allow", tenant="", agent="shared")])
    blue, red, nobody = Principal("b", tenant="blue"), Principal("r", tenant="red"), Principal("n")
    assert access.allows(blue, "blue-bank", "pay", "mcp")
    assert not access.allows(blue, "shared", "pay", "mcp")
    assert not access.allows(red, "blue-bank", "pay", "mcp")
    assert not access.allows_anything(red)
    assert access.allows(nobody, "shared", "pay", "mcp")
    assert not access.allows(nobody, "blue-bank", "pay", "mcp")


def test_clients_can_be_denied_what_no_rule_allows_also_without_rules() -> None:
    access = Access([], "deny")
    assert not access.allows(BOB, "bank", "pay", "mcp")
    assert not access.allows_anything(BOB)
    assert access.allows(LOCAL, "bank", "pay", "mcp")
    assert "access.default" in access.explain(BOB, "bank", "pay", "mcp")


def test_an_operator_of_a_tenant_does_not_operate_the_gateway() -> None:
    scopes = frozenset({OPERATE})
    assert may_operate(Principal("o", scopes=scopes))
    assert not may_operate(Principal("o", scopes=scopes, tenant="blue"))
