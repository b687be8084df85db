"""URI templates (RFC 6570) as far as servers use them: ``{name}``, ``{+path}`` and ``{?a,b}`` at the end.

``{name}`` is one piece of a path, ``{+path}`` may have slashes, and what stands behind ``?`` may be left out. A match
takes time in proportion to the address, whatever that is.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from agent3.errors import SetupError

__all__ = ["UriTemplate"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")
_EXPRESSION = re.compile(r"(?P<kind>[+?]?)(?P<names>[A-Za-z_]\w*(?:,[A-Za-z_]\w*)*)")
_LONGEST = 8_192
"""Characters of an address that is looked at."""


class _Variable(NamedTuple):
    name: str
    is_wide: bool
    """Whether its value may have slashes."""


class UriTemplate:
    """A template, parsed. ``variables`` must be in an address, ``optional`` ones may be."""

    def __init__(self, template: str):
        if not _SCHEME.match(template):
            raise SetupError(
                f"A resource needs an address with a scheme, such as weather://{{city}}, got {template!r}."
            )
        self.template = template
        self.optional: tuple[str, ...] = ()
        self._literals: list[str] = []
        self._variables: list[_Variable] = []
        pieces = re.split(r"\{([^{}]*)\}", template)
        for position, piece in enumerate(pieces):
            if position % 2 == 0:
                if "{" in piece or "}" in piece:
                    raise SetupError(f"The address {template!r} has an unbalanced brace.")
                self._literals.append(piece)
                continue
            found = _EXPRESSION.fullmatch(piece)
            names = found["names"].split(",") if found is not None else []
            is_last = position == len(pieces) - 2 and not pieces[-1]
            if found is None or (found["kind"] != "?" and len(names) > 1) or (found["kind"] == "?" and not is_last):
                raise SetupError(
                    f"{{{piece}}} in the address {template!r} cannot be used. Supported are {{name}}, "
                    f"{{+path}}, which may contain slashes, and {{?a,b}} at the end."
                )
            if found["kind"] == "?":
                self.optional = tuple(names)
            else:
                self._variables.append(_Variable(names[0], found["kind"] == "+"))
        if self.optional:
            self._literals.pop()
        self.variables = tuple(variable.name for variable in self._variables)
        all_names = (*self.variables, *self.optional)
        if double := {name for name in all_names if all_names.count(name) > 1}:
            raise SetupError(f"{{{sorted(double)[0]}}} occurs twice in the address {template!r}.")
        if "" in self._literals[1:-1]:
            raise SetupError(f"Two placeholders of the address {template!r} have nothing between them.")

    @property
    def is_plain(self) -> bool:
        """Whether it is the address of one resource."""
        return not self.variables and not self.optional

    def match(self, uri: str) -> dict[str, str] | None:
        """The values in an address; None for one that is not of this template."""
        if len(uri) > _LONGEST:
            return None
        values: dict[str, str] = {}
        if self.optional:
            uri, _, query = uri.partition("?")
            given = dict(parse_qsl(query, keep_blank_values=True))
            if not given.keys() <= set(self.optional):
                return None
            values.update(given)
        first, *between = self._literals
        if not uri.startswith(first):
            return None
        rest = uri[len(first) :]
        for index, variable in enumerate(self._variables):
            literal = between[index]
            if index == len(self._variables) - 1:
                if not rest.endswith(literal):
                    return None
                end = len(rest) - len(literal)
            else:
                end = rest.find(literal)
            value = rest[: max(end, 0)]
            if not value or (not variable.is_wide and "/" in value):
                return None
            values[variable.name] = unquote(value)
            rest = rest[end + len(literal) :]
        return values if not rest else None
