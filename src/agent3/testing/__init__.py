"""Fakes for tests of agents: the ones that agent3 tests itself with.

``call`` runs one capability of a ``LocalAgent`` through all steps in memory, and answers its questions; ``restarting``
does the same but forgets every frame between two turns, as a restart would, which catches code that only works while
the process lives. ``SeededEnv`` is an environment that repeats itself. ``FaultProxy`` stands before a server and
behaves like a bad network. ``Website`` serves the pages of a folder.
"""

from __future__ import annotations

from agent3.env import Env, SeededEnv
from agent3.testing.conversations import call, restarting
from agent3.testing.proxy import FaultProxy, Faults
from agent3.testing.websites import Website

__all__ = ["Env", "FaultProxy", "Faults", "SeededEnv", "Website", "call", "restarting"]
