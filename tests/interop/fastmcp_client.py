"""The fastmcp client against a server, run by the Python that has fastmcp: prints what it saw as one JSON object.

Arguments: a URL, or a command with its arguments.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any


async def main(target: list[str]) -> dict[str, Any]:
    # Only the Python that runs this has it.
    from fastmcp import Client  # type: ignore[import-not-found]
    from fastmcp.client.transports import StdioTransport  # type: ignore[import-not-found]

    async def answer(message: str, response_type: Any, params: Any, context: Any) -> Any:
        return {"username": "ann", "email": "ann@example.com"}

    transport: Any = target[0] if target[0].startswith("http") else StdioTransport(target[0], target[1:])
    async with Client(transport, elicitation_handler=answer) as client:
        tools = await client.list_tools()
        seen: dict[str, Any] = {"tools": [tool.name for tool in tools]}
        if "test_simple_text" not in seen["tools"]:
            found = await client.call_tool("agent3_search", {"query": "pizza"})
            return {**seen, "found": found.structured_content}
        text = await client.call_tool("test_simple_text", {})
        failed = await client.call_tool("test_error_handling", {}, raise_on_error=False)
        asked = await client.call_tool("test_elicitation", {"message": "Who are you?"})
        prompt = await client.get_prompt("test_prompt_with_arguments", {"arg1": "a", "arg2": "b"})
        resource = await client.read_resource("test://static-text")
        return {
            **seen,
            "text": text.content[0].text,
            "failed": failed.is_error,
            "asked": asked.content[0].text,
            "prompt": prompt.messages[0].content.text,
            "resource": resource[0].text,
        }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1:]))))
