"""Whether a text holds a secret, by the name it stands under or by its form.

Guesses, on the safe side: used to refuse what must not be stored, and to hide what must not come back.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from urllib.parse import unquote_plus

__all__ = [
    "LOGIN",
    "REFERENCE_INSIDE",
    "VAULT",
    "as_reference",
    "holds_secret",
    "looks_secret",
    "names_secret",
    "variable",
]

VAULT = "vault:"
"""How the reference to a secret of the vault begins."""
_VAULT_NAME = r"vault:[A-Za-z0-9][A-Za-z0-9_.-]*"
_WHOLE = re.compile(
    rf"\$\{{(?:env:|input:)?([A-Za-z_][A-Za-z0-9_]*)\}}|\$([A-Za-z_][A-Za-z0-9_]*)|env:(\w+)|({_VAULT_NAME})"
    rf"|\$\{{({_VAULT_NAME})\}}"
)
REFERENCE_INSIDE = re.compile(rf"\$\{{(?:env:|input:)?([A-Za-z_][A-Za-z0-9_]*|{_VAULT_NAME})\}}")

_NAMES = (
    *("key", "token", "secret", "password", "passwd", "passphrase", "pwd", "credential", "credentials"),
    *("auth", "authorization", "bearer", "jwt", "signature"),
)
_PASS = re.compile(r"pat|pw|\w*(?<!by)(?<!com)(?<!tres)pass")
"""Short words for a password or a personal access token; ``bypass`` and ``compass`` are neither."""
_VAGUE = ("auth", "authorization", "bearer", "signature")
_KEYS = frozenset({"api", "access", "secret", "private", "client", "service", "encryption", "license"})
"""What makes a key a secret; others sort, or open a file."""
_KNOWN = re.compile(
    r"(?:^|[\s=:\"'])(?:sk-[A-Za-z0-9_-]*[0-9]|[rs]k_(?:live|test)_|gh[oprsu]_[A-Za-z0-9]|github_pat_|glpat-|xox[abeoprs]-|xapp-"
    r"|A[KS]IA[A-Z0-9]{12}|AIza[A-Za-z0-9_-]{20}|ya29\.|hf_[A-Za-z0-9]{16}|npm_[A-Za-z0-9]{16}|pypi-[A-Za-z0-9]{16}"
    r"|dop_v1_|shpat_|SG\.[A-Za-z0-9]|eyJ[A-Za-z0-9_-]{8,}\.eyJ|-----BEGIN )"
)
"""How the secrets of well-known services begin."""
_RUN = re.compile(r"[A-Za-z0-9]{20,}")
_RANDOM = 3.5
"""Bits per character from which on a run counts as random."""
_PLACE = r"|[./~].*|[A-Za-z]:\\.*|https?://.*"
_SWITCH = re.compile(
    r"|-|true|false|yes|no|on|off|none|null|auto|default|env|file|stdin|prompt|ask|keychain|keyring|basic|bearer"
    + _PLACE,
    re.DOTALL | re.IGNORECASE,
)
"""What may stand where a secret belongs: a switch, a file, an address."""
_WORD = re.compile(r"|.{1,5}|[a-z]{1,7}" + _PLACE, re.DOTALL)
"""What may stand where a secret could: a short word too, such as ``oauth``."""
_DEEPEST = 8
LOGIN = re.compile(r"(?:(?<=[A-Za-z0-9+.-])|\A[A-Za-z][A-Za-z0-9+.-]*+)://[^\s/?#@:]*+:([^\s/@]++)@")
"""An address with a password in it."""
_PARAMETER = re.compile(r"[?&]([^\s=&?#]+)=([^\s&#]+)")
"""One of the query of an address that stands among the arguments."""


def variable(value: str) -> str | None:
    """The name in a value that is a reference and nothing else; one of the vault's begins with ``vault:``."""
    match = _WHOLE.fullmatch(value.strip())
    return next((group for group in match.groups() if group), None) if match else None


def as_reference(name: str) -> str:
    """The reference of a name that ``variable`` or ``REFERENCE_INSIDE`` found."""
    return name if name.startswith(VAULT) else f"env:{name}"


def names_secret(name: str) -> bool:
    """Whether something of that name is a secret: its last word counts, so ``api_key`` is one and ``key_id`` is not."""
    last = _words(name)[-1:]
    return bool(last) and (last[0].endswith(_NAMES) or _PASS.fullmatch(last[0]) is not None)


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def looks_secret(value: str) -> bool:
    """Whether it has the form of a secret: known by how it begins, or random as no word is."""
    return _KNOWN.search(value) is not None or any(_is_random(run) for run in _RUN.findall(value))


def _is_random(run: str) -> bool:
    if run.isalpha() or run.isdigit():
        return False
    bits = -sum(count / len(run) * math.log2(count / len(run)) for count in Counter(run).values())
    return bits >= _RANDOM


def holds_secret(name: str, value: str, depth: int = 0) -> bool:
    """Whether something of that name and value has a secret in it when all references are taken out.

    Where addresses stand in addresses without end, it is taken to have one.
    """
    if depth > _DEEPEST:
        return True
    if variable(value) is not None:
        return False
    rest = REFERENCE_INSIDE.sub("", value)
    if looks_secret(rest) or LOGIN.search(rest) is not None:
        return True
    if names_secret(name):
        return not _is_harmless(name, re.sub(r"^(?:bearer|basic|token)\b\s*", "", rest.strip(), flags=re.IGNORECASE))
    inner = ((unquote_plus(match[1]), unquote_plus(match[2])) for match in _PARAMETER.finditer(rest))
    return any(holds_secret(*pair, depth + 1) for pair in inner)


def _is_harmless(name: str, value: str) -> bool:
    """Whether a value under the name of a secret is none; a name that may mean something else leaves room for words."""
    *before, last = _words(name)
    vague = last.endswith(_VAGUE) or (last == "key" and not _KEYS.intersection(before[-1:]))
    return (_WORD if vague else _SWITCH).fullmatch(value) is not None
