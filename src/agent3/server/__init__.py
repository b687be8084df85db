"""The gateway as a server: ``build`` puts its parts together, ``app`` is the ASGI app, ``run`` serves it.

Only this package knows the concrete classes of all rooms.
"""
