"""JSON Schema: from a signature, compiled once, every fault explained.

``compile`` turns a definition into a ``Schema`` (jsonschema-rs, no remote or file references, capped first);
``from_function`` reads a definition off a Python function; ``check_shape`` refuses what is too deep or too large
before anything recursive meets it. It knows nothing of tools, agents or protocols.
"""

from __future__ import annotations

from agent3.schema.bounds import LIMITS, Limits, check_shape
from agent3.schema.compiled import (
    SCHEMA_LIMITS,
    Schema,
    SchemaLimits,
    compile,  # noqa: A004 - reads as schema.compile, like re.compile
)
from agent3.schema.explain import Fault, nearest
from agent3.schema.signatures import FunctionSchema, arguments, from_function

__all__ = [
    "LIMITS",
    "SCHEMA_LIMITS",
    "Fault",
    "FunctionSchema",
    "Limits",
    "Schema",
    "SchemaLimits",
    "arguments",
    "check_shape",
    "compile",
    "from_function",
    "nearest",
]
