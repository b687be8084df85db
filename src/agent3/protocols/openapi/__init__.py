"""OpenAPI: services that describe themselves by a document, each of their operations a capability."""
