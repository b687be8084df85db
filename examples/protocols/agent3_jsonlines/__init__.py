"""JSON lines over TCP as a protocol of agent3.

``wire`` is the protocol itself, ``connector`` calls agents that speak it, ``door`` offers the agents of the gateway to
others, and ``protocol`` tells the gateway about all of that.
"""
