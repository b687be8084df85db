"""Durable queues on the database: priorities, order within a context, leases, dead letters, replay.

State and messages commit in one transaction, and nothing is dropped silently: a full queue refuses. It knows bytes,
not agents, calls or protocols.
"""

from __future__ import annotations

from agent3.queue.messages import Attempt, Depth, Fate, Lease, Letter, QueueFull, Rules
from agent3.queue.queue import Queue
from agent3.queue.retention import sweep

__all__ = ["Attempt", "Depth", "Fate", "Lease", "Letter", "Queue", "QueueFull", "Rules", "sweep"]
