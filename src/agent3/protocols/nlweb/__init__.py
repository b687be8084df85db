"""Websites as agents, and the NLWeb protocol.

From the bottom up: ``browser`` runs Chromium behind guarded proxies, ``steps`` does on a page what an interface says,
``healing`` finds elements that moved, ``visit`` brings a caller's session, login and pace to it, ``commands`` reads
sentences, ``ask`` speaks the NLWeb protocol, and ``authoring`` makes interfaces. ``connector`` offers all this to the
gateway and ``executor`` to a program of your own; ``websites`` puts the gateway's connector together.
"""
