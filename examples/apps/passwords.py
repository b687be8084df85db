"""A password generator: ``agent3 serve passwords.py`` makes it an MCP tool, an A2A agent and more."""

import math
import secrets
import string
from typing import Annotated, TypedDict

from pydantic import Field

from agent3 import App

app = App("passwords", description="Makes passwords that nobody can guess.", tags=("security", "example"))


class Password(TypedDict):
    """A password, and how many bits of chance are in it."""

    password: str
    bits: float


@app.capability(phrases=("make me a password",))
def generate(length: Annotated[int, Field(ge=8, le=128), "How many characters"] = 20, symbols: bool = True) -> Password:
    """Make a password."""
    kinds = [string.ascii_lowercase, string.ascii_uppercase, string.digits, *(["!#$%&*+-=?@_"] if symbols else [])]
    alphabet = "".join(kinds)
    while True:  # some of each kind, and otherwise every password as likely as any other
        made = "".join(secrets.choice(alphabet) for _ in range(length))
        if all(set(made) & set(kind) for kind in kinds):
            return Password(password=made, bits=round(length * math.log2(len(alphabet)), 1))


if __name__ == "__main__":
    app.serve()
