"""What every test stands on."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from agent3.directory import meaning
from agent3.storage import disk_space
from tests.support.postgres import stop_server
from tests.support.watchdog import UNDER_WAY

# All modules stay to the end: collecting garbage while they are loaded would more than double the time for that, and
# later every collection would look at them again.
gc.disable()

# Where a shell forbids to keep compiled files, every run would rewrite the asserts of all tests again (20 s of a
# processor), and each of hundreds of processes would compile all of agent3 for itself.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes says something about the machine, not about the code. Examples are the same in every run;
# --hypothesis-profile=random draws new ones.
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("agent3", settings.get_profile("random"), derandomize=True)
settings.load_profile("agent3")

# A suite that a script starts in the background inherits an ignored SIGINT, and so would every process it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Meaning is tested by itself; a gateway of any other test would only load the encoder's weights.
meaning.load_encoder = lambda: None  # type: ignore[assignment]

# Hundreds of databases are left behind in folders that pytest keeps; with eight megabytes kept back each, that adds up.
disk_space.RESERVE = 128 * 1024

# The files that take longest, also to wait: begun first, they leave no worker alone at the end.
LONGEST = """
    test_kinds test_bench test_matrix test_leaving test_faults test_website_examples test_web_commands test_tale
    test_modelling test_driver test_docs test_door test_workers test_connector test_wrong_clicks test_adding
    test_turns test_asking_servers test_serving test_visits test_websites test_demo_sites test_gateway
    test_example_protocol test_banners test_changes test_mcp_client test_connection test_logins test_reload
    test_healer test_scripts
""".split()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    if folder := os.environ.get(UNDER_WAY):
        Path(folder, str(os.getpid())).write_text(item.nodeid)


def pytest_sessionfinish() -> None:
    stop_server()


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """A command that is run in this process sets the levels of its log; the next test has its own."""
    loggers = [logging.getLogger(), logging.getLogger("agent3")]
    before = [one.level for one in loggers]
    yield
    for one, level in zip(loggers, before, strict=True):
        one.setLevel(level)
