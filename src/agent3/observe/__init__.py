"""Observability: metrics, traces, logs and the documented performance monitors.

Its modules are the doors: ``metrics``, ``logs``, ``traces`` and ``performance``. Nothing here knows calls or protocols.
"""
