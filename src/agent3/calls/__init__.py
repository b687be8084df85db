"""The call core: every call runs through the steps of one order, as turns of durable jobs."""

from agent3.calls.core import Core
from agent3.calls.jobs import Job, Jobs
from agent3.calls.order import ORDER, Chain
from agent3.calls.runner import Runner, converse

__all__ = ["ORDER", "Chain", "Core", "Job", "Jobs", "Runner", "converse"]
