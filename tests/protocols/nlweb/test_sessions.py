"""What a website remembers of a caller: for that caller and that site alone, and unreadable where it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent3.env import SeededEnv
from agent3.errors import SetupError
from agent3.protocols.nlweb.visit.stored_sessions import Sessions, drop_expired
from agent3.storage import Database, open_database

SITE = "https://shop.example"
KEYS = [b"a secret of the operator's own"]


def cookie(value: str, expires: float = -1) -> dict[str, Any]:
    return {"name": "id", "value": value, "domain": "shop.example", "path": "/", "expires": expires}


def state(value: str = "s3cr3t-cookie", expires: float = -1) -> dict[str, Any]:
    return {"cookies": [cookie(value, expires)], "origins": []}


async def keys() -> list[bytes]:
    return KEYS


def with_database(story: Callable[[Database, SeededEnv], Awaitable[None]]) -> None:
    async def work() -> None:
        env = SeededEnv()
        database = await open_database(":memory:", env=env)
        try:
            await asyncio.wait_for(story(database, env), 60)
        finally:
            await database.aclose()

    asyncio.run(work())


@pytest.mark.requirement("RF-013-57")
def test_a_session_is_found_again_by_its_principal_at_its_site_and_by_nobody_else() -> None:
    async def story(database: Database, env: SeededEnv) -> None:
        sessions = Sessions(database, keys, env=env)
        await sessions.save("ann", SITE, state())
        assert await sessions.load("ann", SITE) == state()
        assert await sessions.load("bob", SITE) is None
        assert await sessions.load("ann", "https://other.example") is None
        assert [one.site for one in await sessions.find("ann")] == [SITE]
        await sessions.save("ann", SITE, state("newer"))
        assert await sessions.load("ann", SITE) == state("newer")
        assert await sessions.forget("ann") == 1
        assert await sessions.load("ann", SITE) is None

    with_database(story)


@pytest.mark.requirement("RF-013-57")
def test_nothing_of_a_session_can_be_read_in_the_database_or_moved_to_another_caller() -> None:
    async def story(database: Database, env: SeededEnv) -> None:
        sessions = Sessions(database, keys, env=env)
        await sessions.save("ann", SITE, state())
        (row,) = await database.all("SELECT * FROM web_sessions")
        assert "s3cr3t" not in str(dict(row))
        await database.write(lambda tx: tx.run("UPDATE web_sessions SET principal = 'bob'"))
        assert await sessions.load("bob", SITE) is None  # it was sealed for ann
        assert await database.all("SELECT * FROM web_sessions") == []

    with_database(story)


def test_a_session_ends_when_nobody_uses_it_and_a_cookie_when_it_says() -> None:
    async def story(database: Database, env: SeededEnv) -> None:
        sessions = Sessions(database, keys, idle_days=1, env=env)
        await sessions.save("ann", SITE, state(expires=env.now() + 3_600))
        env.advance(3_601)
        assert await sessions.load("ann", SITE) is None
        await sessions.save("ann", SITE, state())
        env.advance(86_401)
        assert await sessions.load("ann", SITE) is None
        await sessions.save("bob", SITE, state())
        assert [row["principal"] for row in await database.all("SELECT principal FROM web_sessions")] == ["bob"]

    with_database(story)


def test_an_empty_state_and_one_too_large_are_forgotten() -> None:
    async def story(database: Database, env: SeededEnv) -> None:
        sessions = Sessions(database, keys, env=env)
        unkept: list[dict[str, Any]] = [{"cookies": [], "origins": []}, state("x" * 1_000_001)]
        for one in unkept:
            await sessions.save("ann", SITE, state())
            await sessions.save("ann", SITE, one)
            assert await sessions.load("ann", SITE) is None

    with_database(story)


def test_without_a_key_visits_go_on_and_nothing_is_kept() -> None:
    async def none() -> list[bytes]:
        raise SetupError("no key")

    async def story(database: Database, env: SeededEnv) -> None:
        sessions = Sessions(database, none, env=env)
        await sessions.save("ann", SITE, state())
        assert await sessions.load("ann", SITE) is None

    with_database(story)


def test_keys_that_are_missing_for_a_while_cost_no_session() -> None:
    there = False

    async def sometimes() -> list[bytes]:
        if not there:
            raise SetupError("no key")
        return KEYS

    async def story(database: Database, env: SeededEnv) -> None:
        nonlocal there
        await Sessions(database, keys, env=env).save("ann", SITE, state())
        sessions = Sessions(database, sometimes, env=env)
        assert await sessions.load("ann", SITE) is None
        there = True
        assert await sessions.load("ann", SITE) == state()

    with_database(story)


def test_sessions_are_listed_and_forgotten_by_site_with_all_its_scopes_and_by_principal() -> None:
    async def story(database: Database, env: SeededEnv) -> None:
        sessions = Sessions(database, keys, env=env)
        for who, scope in (("ann", f"{SITE} a"), ("ann", f"{SITE} b"), ("bob", f"{SITE} a"), ("ann", f"{SITE}.au a")):
            await sessions.save(who, scope, state())
            env.advance(1)
        blind = Sessions(database, env=env)
        assert [(one.principal, one.site) for one in await blind.find()] == [
            ("ann", f"{SITE}.au"), ("bob", SITE), ("ann", SITE), ("ann", SITE),
        ]  # fmt: skip
        assert await blind.load("ann", f"{SITE} a") is None, "without keys nothing is opened"
        assert await blind.forget("ann", f"{SITE} b") == 1
        assert await blind.forget("ann", SITE) == 1
        assert [one.principal for one in await blind.find(site=SITE)] == ["bob"]
        assert await blind.forget(site=SITE) == 1
        assert await blind.forget("ann") == 1
        assert await blind.find() == []

    with_database(story)


def test_only_what_has_not_expired_is_fresh() -> None:
    both = {"cookies": [cookie("a", 50), cookie("b", 150)], "origins": []}
    assert drop_expired(both, 100) == {"cookies": [cookie("b", 150)], "origins": []}
    assert drop_expired({"cookies": [cookie("a", 50)], "origins": []}, 100) is None
    local = {"cookies": [], "origins": [{"origin": SITE, "localStorage": []}]}
    assert drop_expired(local, 100) == local
