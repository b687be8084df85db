"""Programs that use a gateway: ``Client`` and ``AsyncClient`` over REST, and how a gateway on this machine is found.

The command line finds and reads gateways by the same code. Nothing here knows what is inside a gateway.
"""
