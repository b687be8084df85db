"""The A2A client side: the connector to other agents."""
