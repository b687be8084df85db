"""Agents in a program: the documented classes around ``AgentExecutor``, and ``serving`` for the network.

``executor`` sends and receives through ``mailboxes`` (queues in memory or in the core's database, emptied by
``consumer``); ``envelopes`` signs and encrypts, ``remote_delivery`` reaches agents elsewhere. ``registry``, ``health``
and ``coordination`` are built on top. ``agent3`` itself loads the documented names on first use.
"""
