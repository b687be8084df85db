"""The output schemas of the five tools, without descriptions: clients check answers by them, and models pay for words.

Each takes every answer of its tool: the one it is for, and the form of a failed ``agent3_call``.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CALL", "CARD", "FEEDBACK", "SEARCH", "SELECT"]

_TEXT = {"type": "string"}
_NUMBER = {"type": "number"}
_COUNT = {"type": "integer"}
_LIST = {"type": "array"}
_OBJECT = {"type": "object"}
_FAILED = {
    "success": {"type": "boolean"},
    "error": _TEXT,
    "errorCode": _TEXT,
    "nextStep": _TEXT,
    "retryable": {"type": "boolean"},
    "details": _OBJECT,
    "metadata": _OBJECT,
}


def _either(*required: str, **properties: Any) -> dict[str, Any]:
    """An answer with these properties, or a failure."""
    shape = {"type": "object", "properties": {**properties, **_FAILED}}
    return {**shape, "anyOf": [{"required": list(required)}, {"required": ["success", "error", "metadata"]}]}


SEARCH = _either("agents", agents={"type": "array", "items": {"type": "object", "required": ["id"]}}, count=_COUNT)
SELECT = _either("id", "capabilities", id=_TEXT, name=_TEXT, description=_TEXT, capabilities=_LIST)
CARD = _either("name", name=_TEXT, description=_TEXT, skills=_LIST)
FEEDBACK = _either("agentId", "recorded", agentId=_TEXT, recorded={"type": "boolean"}, rating=_OBJECT)
CALL = {
    "type": "object",
    "properties": {
        **_FAILED,
        "result": {},
        "agentCard": _OBJECT,
        "status": {"enum": ["needs", "working"]},
        "job": _TEXT,
        "questions": _LIST,
        "text": _TEXT,
        "metadata": {
            "type": "object",
            "properties": {
                "responseTime": _NUMBER,
                "tokensUsed": _COUNT,
                "cost": _NUMBER,
                "statusCode": _COUNT,
                "retryCount": _COUNT,
                "retryAfter": _NUMBER,
            },
            "required": ["responseTime"],
        },
    },
    "required": ["success", "metadata"],
}
