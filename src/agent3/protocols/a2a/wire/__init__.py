"""The wire of A2A: one model of what is said, and a codec for each generation and binding.

``types`` is the model, in the shapes of 1.0. ``CODECS`` speak JSON-RPC and ``RESTS`` the REST bindings; gRPC builds on
them. ``generation_of`` tells which generation a JSON-RPC request means. ``errors`` knows every error code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from agent3.protocols.a2a.wire.codec import Codec, RestCodec, Value
from agent3.protocols.a2a.wire.errors import Profile, VersionNotSupported
from agent3.protocols.a2a.wire.operations import OWNERS
from agent3.protocols.a2a.wire.types import Generation
from agent3.protocols.a2a.wire.v01 import V01
from agent3.protocols.a2a.wire.v03 import V03
from agent3.protocols.a2a.wire.v03_rest import Rest03
from agent3.protocols.a2a.wire.v10 import V10, Rest10

__all__ = ["CODECS", "RESTS", "Codec", "RestCodec", "Value", "generation_of", "rest_codecs", "version_of"]

CODECS: Final[dict[Generation, Codec]] = {"0.1": V01(), "0.3": V03(), "1.0": V10()}


def rest_codecs(profile: Profile = "1.0.1") -> dict[Generation, RestCodec]:
    """The REST bindings, with the statuses of a profile. 0.1 has none."""
    return {"0.3": Rest03(), "1.0": Rest10(profile)}


RESTS: Final[dict[Generation, RestCodec]] = rest_codecs()

_VERSIONS: Final[dict[str, Generation]] = {"1.0": "1.0", "0.3": "0.3", "0.2": "0.3", "0.1": "0.1"}
_NUMBER: Final = re.compile(r"(\d{1,3}\.\d{1,3})(?:\.\d{1,3})?")


def version_of(header: str | None) -> Generation | None:
    """The generation that ``A2A-Version`` names; None where it is empty. VersionNotSupported.

    Only major and minor count: a patch number, which should not be there, is ignored.
    """
    known = _VERSIONS.get(header or "")
    if known is not None:
        return known
    text = (header or "").strip()
    if not text:
        return None
    number = _NUMBER.fullmatch(text)
    generation = _VERSIONS.get(number[1]) if number else None
    if generation is None:
        raise VersionNotSupported(
            f"A2A {text[:20]!r} is not supported. Send A2A-Version: 1.0, 0.3 or 0.1.",
            data={"supported": ", ".join(_VERSIONS)},
        )
    return generation


def generation_of(
    method: str,
    version_header: str | None,
    known: Callable[[str], Generation | None] = lambda method: None,
    *,
    lenient: bool = False,
) -> Generation:
    """The generation that a JSON-RPC request means.

    A method that only one generation has decides, whatever the header says; but a method of 1.0 needs the header 1.0:
    a request without one is 0.3 by the specification, which has no such method. That is VersionNotSupported unless
    ``lenient``. For a method that several share, the header decides, else what ``known`` says (the generation of the
    task, or the last one that this caller used), else 0.3. An unknown method is left to the codec to refuse.
    """
    asked = version_of(version_header)
    owner = OWNERS.get(method)
    if owner is None:
        return asked or known(method) or "0.3"
    if owner == "1.0" and asked != "1.0" and not (lenient and asked is None):
        stated = f"A2A-Version is {asked}" if asked else "A2A-Version is missing, which means 0.3"
        raise VersionNotSupported(
            f"{method!r} is a method of A2A 1.0, but {stated}. Send A2A-Version: 1.0.", data={"supported": "1.0"}
        )
    return owner
