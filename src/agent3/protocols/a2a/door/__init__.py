"""The server side of A2A: agents answer over JSON-RPC and REST here, and over gRPC beside it.

``endpoint.A2AEndpoint`` is the ASGI app, ``tasks.Engine`` does what is asked, and ``push.Pushes`` sends notifications.
``gateway`` is the door of the gateway itself. ``rpc`` and ``rest`` read requests and write answers, and ``dispatch`` is
what all bindings share.
"""
