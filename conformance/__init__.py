"""The protocols' own conformance suites, run against agent3."""
