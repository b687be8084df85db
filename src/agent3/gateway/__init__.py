"""Search, select, invoke, call, feedback, for every door."""

from agent3.gateway.gateway import Caller, CallRequest, Gateway, response

__all__ = ["CallRequest", "Caller", "Gateway", "response"]
