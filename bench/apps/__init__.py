"""The servers that ours is measured beside; each module holds one ASGI application named ``app``."""
