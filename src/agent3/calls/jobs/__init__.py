"""Jobs: what the turns of one conversation share, durable and with a log of events.

``Jobs`` is the store. Which process works on a job is kept by its ``leases``, what was told by its ``log``.
"""

from agent3.calls.jobs.ended import may_repeat
from agent3.calls.jobs.jobs import JobFilter, JobObserver, Jobs
from agent3.calls.jobs.leases import LEASE
from agent3.calls.jobs.log import Line
from agent3.calls.jobs.rows import META_ALIAS, META_KIND, META_RESULT, Job, KeyReused, Status

__all__ = [
    "LEASE",
    "META_ALIAS",
    "META_KIND",
    "META_RESULT",
    "Job",
    "JobFilter",
    "JobObserver",
    "Jobs",
    "KeyReused",
    "Line",
    "Status",
    "may_repeat",
]
