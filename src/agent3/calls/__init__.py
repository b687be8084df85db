"""The call core: steps in one order, jobs with an event log, and Python functions as agents."""

from agent3.calls.core import House
from agent3.calls.jobs.jobs import Job, Jobs
from agent3.calls.order import ORDER, chain
from agent3.calls.runner import Runner, converse

__all__ = [
    "ORDER",
    "House",
    "Job",
    "Jobs",
    "Runner",
    "chain",
    "converse",
]
