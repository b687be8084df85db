"""The two websites of the demo: their pages, and the interfaces that make agents of them."""

from __future__ import annotations

from pathlib import Path

from agent3.definitions import NLWebInterface

__all__ = ["SITES", "activities", "airline"]

SITES = Path(__file__).parent / "sites"


def airline(url: str) -> NLWebInterface:
    """The website of the airline whose flights the flight agent sells."""
    return NLWebInterface.from_document(
        {
            "interface_id": "demo-airline",
            "name": "A3 Air",
            "description": "The website of an airline.",
            "base_url": f"{url}/",
            "actions": {
                "find_flights": [
                    {"action_type": "navigate", "value": "/"},
                    {"action_type": "type", "selector": "#from", "value": "{origin}"},
                    {"action_type": "type", "selector": "#to", "value": "{destination}"},
                    {"action_type": "type", "selector": "#day", "value": "{date}"},
                    {"action_type": "click", "selector": "#go"},
                    {"action_type": "wait", "until": {"text": "flights on"}},
                    {
                        "action_type": "extract",
                        "selector": ".flight",
                        "extract_schema": {
                            "number": ".number",
                            "leaves": ".leaves",
                            "arrives": ".arrives",
                            "price": {"selector": ".price", "type": "number"},
                        },
                    },
                ]
            },
            "info": {
                "find_flights": {
                    "description": "Look up the flights of this airline on its website.",
                    "phrases": ["what leaves {origin} for {destination} on {date}"],
                    "hints": {"read_only": True},
                    "input_schema": {
                        "type": "object",
                        "properties": {
                            "origin": {"type": "string", "description": "City to fly from"},
                            "destination": {"type": "string", "description": "City to fly to"},
                            "date": {"type": "string", "format": "date", "description": "Day of departure"},
                        },
                        "required": ["origin", "destination", "date"],
                    },
                }
            },
        }
    )


def activities(url: str) -> NLWebInterface:
    """A website that lists what there is to do in a city."""
    return NLWebInterface.from_document(
        {
            "interface_id": "demo-activities",
            "name": "Things to do",
            "description": "A website of activities in a city.",
            "base_url": f"{url}/",
            "actions": {
                "find_activities": [
                    {"action_type": "navigate", "value": "/"},
                    {"action_type": "type", "selector": "#city", "value": "{city}"},
                    {"action_type": "click", "selector": "#show"},
                    {"action_type": "wait", "until": {"text": "things to do in"}},
                    {
                        "action_type": "extract",
                        "selector": ".activity",
                        "extract_schema": {
                            "title": ".title",
                            "hours": {"selector": ".hours", "type": "number"},
                            "price": {"selector": ".price", "type": "number"},
                        },
                    },
                ]
            },
            "info": {
                "find_activities": {
                    "description": "Find activities in a city.",
                    "phrases": ["things to do in {city}", "activities in {city}"],
                    "hints": {"read_only": True},
                    "input_schema": {
                        "type": "object",
                        "properties": {"city": {"type": "string", "description": "Name of the city"}},
                        "required": ["city"],
                    },
                }
            },
        }
    )
