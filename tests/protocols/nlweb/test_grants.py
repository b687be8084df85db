"""Secrets and the websites they are for."""

from __future__ import annotations

from typing import Any

import pytest

from agent3.definitions import NLWebInterface
from agent3.errors import SetupError
from agent3.protocols.nlweb.visit.secret_grants import Grants, scope_of, variables_of
from tests.support.visits import shop


def interface(url: str = "https://shop.example", **more: Any) -> NLWebInterface:
    return NLWebInterface(
        interface_id="shop", name="Shop", base_url=url, metadata={"secrets": {"pin": "env:PIN"}}, **more
    )


def test_an_interface_names_the_variables_of_its_steps_and_of_its_login() -> None:
    assert variables_of(interface()) == {"PIN"}
    assert variables_of(shop("https://shop.example", login=True)) == {"SHOP_PASSWORD"}
    assert variables_of(shop("https://shop.example")) == set()


@pytest.mark.parametrize(
    ("entry", "fits"),
    [
        ("PIN@shop.example", True),
        ("PIN@SHOP.example", True),
        ("PIN@*.shop.example", True),
        ("PIN@*.example", True),
        ("OTHER@shop.example", False),
        ("PIN@example", False),
        ("PIN@evilshop.example", False),
        ("PIN@shop.example.evil.example", False),
        ("PIN@shop.example:8443", False),
    ],
)
def test_a_variable_is_given_to_its_own_website_only(entry: str, fits: bool) -> None:
    grants = Grants.read([entry])
    if fits:
        grants.require(interface())
    else:
        with pytest.raises(SetupError, match=r"PIN@shop\.example\. If you trust"):
            grants.require(interface())


def test_all_that_the_pages_can_reach_must_be_meant() -> None:
    own = Grants.read(["PIN@shop.example"])
    with pytest.raises(SetupError, match=r"have: PIN@cdn\.example\. If"):
        own.require(interface(allowed_hosts=["cdn.example"]))
    with pytest.raises(SetupError, match=r"have: PIN@\*\.shop\.example\. If"):
        own.require(interface(allow_subdomains=True))
    Grants.read(["PIN@*.shop.example", "PIN@*.cdn.example:444"]).require(
        interface(allowed_hosts=["cdn.example:444"], allow_subdomains=True)
    )


def test_a_port_of_its_own_is_named() -> None:
    grants = Grants.read(["PIN@127.0.0.1:8400"])
    grants.require(interface("http://127.0.0.1:8400/"))
    with pytest.raises(SetupError, match=r"PIN@127\.0\.0\.1:8401"):
        grants.require(interface("http://127.0.0.1:8401"))
    Grants.read(["PIN@shop.example"]).require(interface("https://shop.example:443"))


def test_without_entries_nothing_is_given_and_what_needs_nothing_passes() -> None:
    with pytest.raises(SetupError, match=r"agent3\.toml"):
        Grants().require(interface())
    Grants().require(shop("https://shop.example"))


@pytest.mark.parametrize("entry", ["PIN", "@shop.example", "PIN@", "a-b@shop.example", "PIN@user:word@shop.example"])
def test_an_entry_that_cannot_be_read_is_named(entry: str) -> None:
    with pytest.raises(SetupError, match=r"web\.secrets|cannot be an allowed host"):
        Grants.read([entry])


def test_a_session_is_shared_only_by_interfaces_that_reach_the_same_and_take_the_same_secrets() -> None:
    own = scope_of(interface())
    assert own.startswith("https://shop.example ")
    assert own == scope_of(interface("https://shop.example/de").model_copy(update={"interface_id": "other"}))
    others = [
        interface(allowed_hosts=["evil.example"]),
        interface(allow_subdomains=True),
        interface("https://shop.example:8443"),
        interface().model_copy(update={"metadata": {}}),
        interface().model_copy(update={"metadata": {"secrets": {"pin": "env:OTHER"}}}),
    ]
    assert len({own, *map(scope_of, others)}) == 6
    assert Grants().covers(others[3])
    assert not Grants().covers(interface())
    assert Grants.read(["PIN@shop.example"]).covers(interface())
