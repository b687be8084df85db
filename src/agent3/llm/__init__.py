"""The port to a language model, two light adapters, and the loop that lets a model call tools.

``OpenAICompatible`` and ``Anthropic`` talk to a vendor, ``Scripted`` is for tests; all three are an ``LLM``. ``run``
gives tools to one and runs what it asks for. Nothing here knows where tools come from or how they are guarded: that is
up to the ``invoke`` it is given. Importing it sends nothing and loads no HTTP client.
"""

from __future__ import annotations

from agent3.llm.anthropic import Anthropic
from agent3.llm.loop import Conversation, LoopEvent, run, run_sync
from agent3.llm.openai import OpenAICompatible
from agent3.llm.port import (
    LLM,
    Assistant,
    Image,
    Message,
    Price,
    Reply,
    System,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    User,
    complete_sync,
)
from agent3.llm.scripted import Scripted

__all__ = [
    "LLM",
    "Anthropic",
    "Assistant",
    "Conversation",
    "Image",
    "LoopEvent",
    "Message",
    "OpenAICompatible",
    "Price",
    "Reply",
    "Scripted",
    "System",
    "Text",
    "Tool",
    "ToolCall",
    "ToolResult",
    "Usage",
    "User",
    "complete_sync",
    "run",
    "run_sync",
]
