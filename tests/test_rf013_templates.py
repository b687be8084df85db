"""RF-013's own templates for the scenarios 1 to 3 and 21 to 23, word for word but for layout and annotations.

``mock_llm`` is anything: finding and running tools asks no language model. ``time`` is a clock that a busy machine does
not drive.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: PIE807

from __future__ import annotations

from datetime import datetime

import pytest

from agent3 import (
    A2AMessage,
    AgentCapability,
    AgentCard,
    AgentExecutor,
    AgentRegistry,
    MCPClient,
    MCPServer,
    MessageType,
    ToolDefinition,
    ToolParameter,
    ValidationError,
)
from tests.support import processor_clock as time

mock_llm = object()


@pytest.mark.requirement("RF-013-01")
def test_mcp_tool_discovery() -> None:
    """RF-013: MCP Scenario 1 - Tool Discovery"""
    server = MCPServer(name="test_server")

    # Register 5 tools
    for i in range(5):
        tool_def = ToolDefinition(name=f"tool_{i}", description=f"Tool {i}", parameters=[], returns={"type": "object"})
        server.register_tool(tool_def, lambda: {})

    client = MCPClient(llm_client=mock_llm)

    start = time.time()
    client.connect_to_server(server)
    duration = time.time() - start

    tools = client.get_available_tools()
    assert len(tools) == 5
    assert all(hasattr(t, "name") and hasattr(t, "description") for t in tools)
    assert duration < 0.1


@pytest.mark.requirement("RF-013-02")
def test_mcp_tool_invocation_success() -> None:
    """RF-013: MCP Scenario 2 - Tool Invocation Success"""
    server = MCPServer(name="travel")

    def search_flights_impl(origin, destination):
        return [{"airline": "Test Air", "price": 500}]

    tool_def = ToolDefinition(
        name="search_flights",
        description="Search flights",
        parameters=[
            ToolParameter(name="origin", type="string", required=True),
            ToolParameter(name="destination", type="string", required=True),
        ],
        returns={"type": "array"},
    )
    server.register_tool(tool_def, search_flights_impl)

    client = MCPClient(llm_client=mock_llm)
    client.connect_to_server(server)

    start = time.time()
    result = client.invoke_tool("search_flights", {"origin": "NYC", "destination": "Paris"})
    duration = time.time() - start

    assert result["status"] == "success"
    assert len(result["result"]) > 0
    assert duration < 0.5


@pytest.mark.requirement("RF-013-03")
def test_mcp_parameter_validation() -> None:
    """RF-013: MCP Scenario 3 - Parameter Validation"""
    server = MCPServer(name="travel")

    tool_def = ToolDefinition(
        name="search_flights",
        parameters=[
            ToolParameter(name="origin", type="string", required=True),
            ToolParameter(name="destination", type="string", required=True),
        ],
        returns={"type": "array"},
    )

    def impl(**kwargs):
        raise AssertionError("Should not be called")

    server.register_tool(tool_def, impl)

    client = MCPClient(llm_client=mock_llm)
    client.connect_to_server(server)

    with pytest.raises(ValidationError) as exc:
        client.invoke_tool("search_flights", {"origin": "NYC"})  # Missing destination

    assert "destination" in str(exc.value)


@pytest.mark.requirement("RF-013-21")
def test_agent_registry_discovery() -> None:
    """RF-013: A2A Scenario 21 - Agent Discovery"""
    registry = AgentRegistry()

    flight_card = AgentCard(
        agent_id="flight",
        name="Flight Agent",
        capabilities=[AgentCapability(name="search_flights", description="Search")],
    )
    hotel_card = AgentCard(
        agent_id="hotel", name="Hotel Agent", capabilities=[AgentCapability(name="search_hotels", description="Search")]
    )

    registry.register_agent(flight_card)
    registry.register_agent(hotel_card)

    all_agents = registry.discover_agents()
    assert len(all_agents) == 2

    flight_agents = registry.discover_agents(capability_required="search_flights")
    assert len(flight_agents) == 1
    assert flight_agents[0].agent_id == "flight"


@pytest.mark.requirement("RF-013-22")
def test_a2a_message_sending() -> None:
    """RF-013: A2A Scenario 22 - Message Sending"""
    flight_card = AgentCard(agent_id="flight", name="Flight", capabilities=[])
    executor = AgentExecutor(flight_card)

    start = time.time()
    message = executor.send_message(
        to_agent="hotel", message_type=MessageType.REQUEST, capability="search_hotels", content={"location": "Paris"}
    )
    duration = time.time() - start

    assert message.message_id is not None
    assert message.from_agent == "flight"
    assert message.to_agent == "hotel"
    assert (datetime.now() - message.timestamp).total_seconds() < 1.0
    assert duration < 0.05


@pytest.mark.requirement("RF-013-23")
def test_a2a_message_receiving() -> None:
    """RF-013: A2A Scenario 23 - Message Receiving"""
    hotel_card = AgentCard(agent_id="hotel", name="Hotel", capabilities=[])
    executor = AgentExecutor(hotel_card)

    def search_hotels_impl(location):
        return [{"name": "Hotel Paris", "price": 200}]

    executor.register_capability("search_hotels", search_hotels_impl)

    request = A2AMessage(
        from_agent="flight",
        to_agent="hotel",
        message_type=MessageType.REQUEST,
        capability="search_hotels",
        content={"location": "Paris"},
    )

    response = executor.receive_message(request)

    assert response is not None
    assert response.message_type == MessageType.RESPONSE
    assert response.content["status"] == "success"
    assert response.correlation_id == request.message_id
