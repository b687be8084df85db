"""The exit codes of commands, by kind of error.

0 done; 1 the call failed; 2 wrong input or settings; 3 the agent asks a question and there is no terminal; 4 not found
or not allowed; 5 the gateway, the target or the database cannot be reached.
"""

from __future__ import annotations

from agent3.errors import AccessError, Agent3Error, NotFound, RequestError, SetupError, StorageError, Unavailable

__all__ = ["QUESTION", "exit_code"]

QUESTION = 3


def exit_code(kind: type[Agent3Error]) -> int:
    """The exit code for an error of this class."""
    if issubclass(kind, NotFound | AccessError):
        return 4
    if issubclass(kind, Unavailable | StorageError):
        return 5
    return 2 if issubclass(kind, RequestError | SetupError) else 1
