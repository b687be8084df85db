"""What the servers offer and are asked: the same 10,000 tools on both sides, and one large order.

Data only, so that whoever serves it imports nothing of whom it is measured beside.
"""

from __future__ import annotations

from typing import Any

__all__ = ["COUNT", "PAGE", "description", "large_order", "name", "schema"]

COUNT = 10_000
PAGE = 500
"""Tools on one page of a list: the default of ours, and what the other side is told to do."""
LINES = 40


def name(number: int) -> str:
    """The name of one tool; in alphabetical order they count up."""
    return f"tool_{number:05}"


def description(number: int) -> str:
    """What it does."""
    return f"Looks up what is known under number {number}, in the language of the caller, the newest first."


def schema(number: int) -> dict[str, Any]:
    """The input schema of one tool; no two numbers give the same."""
    return {
        "type": "object",
        "properties": {
            "query": {"type": "string", "maxLength": 500, "description": "What to look for"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 100 + number},
            "kind": {"type": "string", "enum": ["new", "used", f"kind{number}"]},
        },
        "required": ["query"],
        "additionalProperties": False,
    }


def large_order() -> dict[str, Any]:
    """Arguments of the complex tool: some 8 kB, five levels deep."""
    address = {"name": "hello", "street": "1 Long Street", "city": "Springfield", "country": "CH", "lines": ["c/o"]}
    lines = [
        {
            "sku": f"SKU-{number:04}",
            "quantity": number % 5 + 1,
            "price": {"amount": 19.5 + number, "currency": "CHF"},
            "options": [{"name": "size", "value": "M"}, {"name": "colour", "value": "blue"}],
            "discount": {"percent": 5.0, "reason": "spring"} if number % 3 == 0 else None,
        }
        for number in range(LINES)
    ]
    return {"order": {"customer": address, "delivery": address, "lines": lines, "tags": ["web", "gift"]}}
