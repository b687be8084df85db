"""Whether a process is certainly gone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from agent3.calls.jobs import nodes
from agent3.env import REAL


class Owner:
    """Somebody who is here."""


def test_a_node_of_this_process_is_dead_when_it_left_or_its_owner_is_gone() -> None:
    one, two = Owner(), Owner()
    me, other = nodes.enter(REAL, one), nodes.enter(REAL, two)
    assert not nodes.dead(me, me)
    assert not nodes.dead(other, me)
    nodes.leave(other)
    assert nodes.dead(other, me)
    again = nodes.enter(REAL, two)
    assert not nodes.dead(again, me)
    del two
    assert nodes.dead(again, me)
    assert nodes.dead(None, me)


def test_a_process_of_the_same_machine_is_dead_when_its_number_is_free() -> None:
    owner = Owner()
    me = nodes.enter(REAL, owner)
    host, numbering, _, _ = me.split("/")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert not nodes.dead(f"{host}/{numbering}/{child.pid}/x", me)
        child.communicate(b"\n", timeout=10)
    assert nodes.dead(f"{host}/{numbering}/{child.pid}/x", me)


@pytest.mark.parametrize("pid", [str(os.getpid()), "4000001", "99999999999999999999"], ids=["mine", "free", "none"])
def test_where_numbers_are_counted_otherwise_nothing_is_certain(pid: str) -> None:
    owner = Owner()
    me = nodes.enter(REAL, owner)
    host, numbering, _, _ = me.split("/")
    for node in (
        f"{host}/{numbering}0/{pid}/x",
        f"other/{numbering}/{pid}/x",
        f"{host}//{pid}/x",
        f"{host}/{pid}/x",
        "",
        f"{host}/{numbering}/99999999999999999999/x",
    ):
        assert not nodes.dead(node, me)
    assert not nodes.dead(f"{host}//{pid}/x", f"{host}//1/y"), "unknown is not equal to unknown"
