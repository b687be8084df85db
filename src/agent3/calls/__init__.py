"""The call core: steps in one order, jobs with an event log, and Python functions as agents."""

from agent3.calls.chain import ORDER, chain
from agent3.calls.functions import Context, LocalAgent, LocalConnector, SyncContext
from agent3.calls.house import House
from agent3.calls.jobs import Job, Jobs
from agent3.calls.runner import Runner, converse

__all__ = [
    "ORDER",
    "Context",
    "House",
    "Job",
    "Jobs",
    "LocalAgent",
    "LocalConnector",
    "Runner",
    "SyncContext",
    "chain",
    "converse",
]
