"""The NLWeb protocol."""
