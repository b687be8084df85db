"""JSON lines over TCP as a protocol of agent3.

``wire`` is the protocol itself, ``connector`` calls agents that speak it, ``door`` offers the agents of the gateway to
others, ``command`` is a command of its own, and ``protocol`` tells the gateway about all of that.
"""
