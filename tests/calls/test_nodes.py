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
    me, other = nodes.register_node(REAL, one), nodes.register_node(REAL, two)
    assert not nodes.is_dead(me, me)
    assert not nodes.is_dead(other, me)
    nodes.unregister_node(other)
    assert nodes.is_dead(other, me)
    again = nodes.register_node(REAL, two)
    assert not nodes.is_dead(again, me)
    del two
    assert nodes.is_dead(again, me)
    assert nodes.is_dead(None, me)


def test_a_process_of_the_same_machine_is_dead_when_its_number_is_free() -> None:
    owner = Owner()
    me = nodes.register_node(REAL, owner)
    host, numbering, _, _ = me.split("/")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert not nodes.is_dead(f"{host}/{numbering}/{child.pid}/x", me)
        child.communicate(b"\n", timeout=240)
    assert nodes.is_dead(f"{host}/{numbering}/{child.pid}/x", me)


@pytest.mark.parametrize("pid", [str(os.getpid()), "4000001", "99999999999999999999"], ids=["mine", "free", "none"])
def test_where_numbers_are_counted_otherwise_nothing_is_certain(pid: str) -> None:
    owner = Owner()
    me = nodes.register_node(REAL, owner)
    host, numbering, _, _ = me.split("/")
    for node in (
        f"{host}/{numbering}0/{pid}/x",
        f"other/{numbering}/{pid}/x",
        f"{host}//{pid}/x",
        f"{host}/{pid}/x",
        "",
        f"{host}/{numbering}/99999999999999999999/x",
    ):
        assert not nodes.is_dead(node, me)
    assert not nodes.is_dead(f"{host}//{pid}/x", f"{host}//1/y"), "unknown is not equal to unknown"
