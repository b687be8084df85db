"""Signing in by an agent card: which OAuth flow the card declares for a person, and what its token is for.

The flow itself, and what of it may be trusted, is the OAuth client's (``identity.oauth``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from agent3.definitions import AgentCard
from agent3.identity.oauth import Flow, check_endpoint, fetch_metadata, flow_from_metadata, issuer_of, origin_of
from agent3.protocols.a2a.cards.cards import address_of, interfaces
from agent3.protocols.a2a.peer.credentials import security_schemes
from agent3.security.outbound import Gate

__all__ = ["find_flow"]


async def find_flow(card: AgentCard, gate: Gate) -> Flow | None:
    """How a person signs in, by the first scheme of a card that has a flow for one; None where none has.

    TargetRefused where a scheme leads to something that is not https, MalformedResponse where it leads to nothing.
    """
    for definition, scopes in security_schemes(card):
        flow = (definition.get("flows") or {}).get("authorizationCode")
        if definition.get("type") == "openIdConnect" and definition.get("openIdConnectUrl"):
            where = check_endpoint(definition["openIdConnectUrl"])
            metadata = await fetch_metadata(gate, where)
            found = flow_from_metadata(metadata, scopes or ("openid",))
            return _for_agent(replace(found, issuer=issuer_of(metadata, where)), card)
        if definition.get("type") == "oauth2" and isinstance(flow, Mapping):
            return _for_agent(await _read_flow(gate, definition, flow, scopes), card)
    return None


async def _read_flow(gate: Gate, scheme: Mapping[str, Any], flow: Mapping[str, Any], scopes: tuple[str, ...]) -> Flow:
    """The flow of an ``oauth2`` scheme, with what the authorization server adds where the card says where to ask."""
    declared = Flow(
        authorize=check_endpoint(flow.get("authorizationUrl")),
        token=check_endpoint(flow.get("tokenUrl")),
        refresh=check_endpoint(flow["refreshUrl"]) if flow.get("refreshUrl") else "",
        scopes=scopes or tuple(flow.get("scopes") or ()),
    )
    if not scheme.get("oauth2MetadataUrl"):
        return declared
    where = check_endpoint(scheme["oauth2MetadataUrl"])
    metadata = await fetch_metadata(gate, where)
    issuer = issuer_of(metadata, where)
    token = metadata.get("token_endpoint")
    named = metadata.get("authorization_endpoint"), token, token
    if issuer and named == (declared.authorize, declared.token, declared.refresh or declared.token):
        return replace(flow_from_metadata(metadata, declared.scopes), issuer=issuer)
    # The card says something else than the server: only the registration endpoint is taken, and ``check_flow`` judges.
    register = metadata.get("registration_endpoint")
    return replace(declared, register=check_endpoint(register) if register else "")


def _for_agent(flow: Flow, card: AgentCard) -> Flow:
    """For the agent at the first address that is spoken to, and at other ports of its host that the card names."""
    urls = [address_of(interface) for interface, _ in interfaces(card)]
    if not urls:
        return flow
    host = urlsplit(urls[0]).hostname
    origins = dict.fromkeys(origin_of(url) for url in urls if urlsplit(url).hostname == host)
    return replace(flow, resource=urls[0].partition("#")[0], origins=tuple(origins))
