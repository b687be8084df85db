"""Logins that were turned down: not again at once, and not by everybody together."""

from __future__ import annotations

import asyncio

import pytest

from agent3.env import SeededEnv
from agent3.errors import TargetRefused
from agent3.protocols.nlweb.visit.login import Accounts, Login
from tests.support.visits import shop

SHOP = shop("https://shop.example", login=True)
_SAID = Login.of(SHOP)
assert _SAID is not None
LOGIN: Login = _SAID
WRONG, RIGHT = {"user": "ann", "password": "wrong"}, {"user": "ann", "password": "sesame"}


def test_each_refusal_doubles_the_pause_and_a_login_that_is_taken_ends_it() -> None:
    async def story() -> None:
        env = SeededEnv()
        accounts = Accounts(env=env)
        for pause in (60, 120, 240):
            async with accounts.attempt(SHOP, LOGIN, WRONG) as account:
                account.reject()
            env.advance(pause - 1)
            with pytest.raises(TargetRefused, match="not tried again for 1 s") as caught:
                async with accounts.attempt(SHOP, LOGIN, WRONG):
                    raise AssertionError
            assert not caught.value.sent
            assert caught.value.retry_after == pytest.approx(1)
            assert "wrong" not in caught.value.message
            env.advance(2)
        async with accounts.attempt(SHOP, LOGIN, WRONG) as account:
            account.accept()
        async with accounts.attempt(SHOP, LOGIN, WRONG) as account:
            account.reject()
        env.advance(61)
        async with accounts.attempt(SHOP, LOGIN, WRONG):
            pass

    asyncio.run(story())


def test_another_secret_or_other_steps_are_another_matter() -> None:
    async def story() -> None:
        accounts = Accounts(env=SeededEnv())
        async with accounts.attempt(SHOP, LOGIN, WRONG) as account:
            account.reject()
        async with accounts.attempt(SHOP, LOGIN, RIGHT):
            pass
        mended = SHOP.model_copy(update={"actions": {**SHOP.actions, "login": SHOP.actions["login"][:-1]}})
        async with accounts.attempt(mended, LOGIN, WRONG):
            pass

    asyncio.run(story())


def test_until_one_was_let_in_they_try_one_after_the_other() -> None:
    async def story() -> None:
        accounts, sent = Accounts(env=SeededEnv()), 0

        async def call() -> None:
            nonlocal sent
            async with accounts.attempt(SHOP, LOGIN, WRONG) as account:
                sent += 1
                await asyncio.sleep(0)
                account.reject()

        told = await asyncio.gather(*(call() for _ in range(5)), return_exceptions=True)
        assert (sent, sum(isinstance(one, TargetRefused) for one in told)) == (1, 4)
        async with accounts.attempt(SHOP, LOGIN, RIGHT) as account:
            account.accept()
            async with asyncio.timeout(60), accounts.attempt(SHOP, LOGIN, RIGHT):  # nobody waits for one that is known
                pass

    asyncio.run(asyncio.wait_for(story(), 60))
