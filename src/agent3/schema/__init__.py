"""JSON Schema: from a signature, compiled once, every fault explained.

``compile`` turns a definition into a ``Schema`` (jsonschema-rs, capped first, no remote or file references);
``compiled`` does so once for a definition that never changes; ``from_function`` reads a definition off a Python
function; ``check_shape`` refuses what is too deep or too large before anything recursive touches it. It knows nothing
of tools, agents or protocols.
"""

from __future__ import annotations

from agent3.schema.bounds import LIMITS, Limits, check_shape
from agent3.schema.compiler import (
    SCHEMA_LIMITS,
    Schema,
    SchemaLimits,
    compile,  # noqa: A004 - reads as schema.compile, like re.compile
    compiled,
    once,
)
from agent3.schema.explain import Fault, json_type, nearest
from agent3.schema.function_schema import FunctionSchema, arguments, from_function

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
    "compiled",
    "from_function",
    "json_type",
    "nearest",
    "once",
]
