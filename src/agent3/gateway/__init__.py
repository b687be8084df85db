"""The gateway: finds, calls and rates whatever is registered, for every door. It knows no protocol."""

from agent3.gateway.gateway import Caller, CallRequest, Gateway, response
from agent3.gateway.verbs import Verbs, is_batch

__all__ = ["CallRequest", "Caller", "Gateway", "Verbs", "is_batch", "response"]
