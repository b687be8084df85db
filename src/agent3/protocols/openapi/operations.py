"""The operations of a document as capabilities: what each takes, what it gives, and how its request is put together.

``Operation`` is the plan of a request. It is all that a call needs, so it is kept in the route and the document is not.
Callbacks, webhooks and links are for services that call back, and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from urllib.parse import urljoin, urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agent3.errors import MalformedResponse, SetupError, TooLarge
from agent3.identity.scheme_credentials import Scheme, is_usable
from agent3.identity.secret_refs import check_query
from agent3.model import Agent, Capability, Deprecation, Hints, Route, agent_id, encode
from agent3.observe.logs import get as logger
from agent3.protocols.openapi.document import BrokenReference, Document
from agent3.protocols.openapi.schemas import DETAIL, Detail, Schemas, accepted
from agent3.protocols.openapi.styles import STYLES
from agent3.security.sanitize import clean_text

__all__ = ["FILE", "MOST_OPERATIONS", "Body", "Operation", "Parameter", "describe"]

log = logger("openapi")

Place = Literal["path", "query", "header", "cookie"]

MOST_OPERATIONS = 2_000
_MOST_STORED = 8 << 20
"""Bytes of an agent in the directory, with all its schemas."""
_MOST_DESCRIPTION = 2_000
_METHODS = ("get", "head", "options", "post", "put", "patch", "delete")
"""What the outbound gate sends; TRACE is refused there."""
_SAFE = frozenset({"get", "head", "options"})
_NOT_PARAMETERS = frozenset(
    {"accept", "content-type", "authorization", "host", "content-length", "transfer-encoding", "connection", "upgrade"}
)
"""Headers that the standard, or HTTP itself, keeps parameters out of."""
_KEY = "idempotency-key"
_ENCODING = frozenset({"style", "explode", "contentType"})
_NOT_PLAIN = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "$dynamicRef"})
_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json|text/json|[\w*]+/\*(?:\+json)?", re.IGNORECASE)
_NAME = re.compile(r"[^A-Za-z0-9_.-]+")

FILE: dict[str, Any] = {
    "type": "object",
    "description": "A file: its content as text, as base64 in data, or the id of an artifact.",
    "properties": {
        "name": {"type": "string", "description": "File name"},
        "media_type": {"type": "string"},
        "text": {"type": "string"},
        "data": {"type": "string", "contentEncoding": "base64"},
        "artifact": {"type": "string"},
    },
    "oneOf": [{"required": ["text"]}, {"required": ["data"]}, {"required": ["artifact"]}],
    "additionalProperties": False,
}


class Parameter(Struct, frozen=True, omit_defaults=True):
    """One value outside of the body. ``given`` is its name in the input, where that is not its own."""

    name: str
    place: Place
    style: str
    explode: bool = False
    given: str | None = None
    reserved: bool = False
    json: bool = False

    @property
    def key(self) -> str:
        return self.given or self.name


class Body(Struct, frozen=True, omit_defaults=True):
    """The body: one value of the input as a ``whole``, or ``fields``, from names in the input to its own names."""

    media_type: str
    whole: str | None = None
    fields: dict[str, str] = {}
    files: tuple[str, ...] = ()
    encoding: dict[str, dict[str, Any]] = {}
    """By own name: ``style``, ``explode``, ``contentType``."""


class Operation(Struct, frozen=True, omit_defaults=True):
    """The plan of a request."""

    method: str
    path: str
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    accept: str = ""
    scheme: dict[str, Any] | None = None
    """The security scheme by which the credential of the route is carried; None where none is wanted."""
    scopes: tuple[str, ...] = ()
    key_header: str | None = None
    """The header that takes the key of a call, so that the service does not do it twice."""


class _Skipped(Exception):
    """An operation that cannot be called, and why."""


def describe(document: Document, route: Route, address: str | None) -> Agent:
    """The service of a document as an agent.

    ``address`` is where the document came from, against which its servers are resolved; None for a file. ``route`` is
    the pattern of every route. SetupError, MalformedResponse or TooLarge where it cannot be one. Not for the event
    loop: it takes seconds for a large document.
    """
    for detail in DETAIL:
        agent = _Reader(document, route, address, detail).read()
        if len(encode(agent)) <= _MOST_STORED:
            return agent
        log.info("%s: its schemas are simplified, since they are too large together", agent.id)
    raise TooLarge(f"The operations of the document are too large to be stored: more than {_MOST_STORED} bytes.")


@dataclass
class _Reader:
    document: Document
    pattern: Route
    address: str | None
    detail: Detail
    skipped: list[str] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)

    def read(self) -> Agent:
        content = self.document.content
        info = _as_mapping(content.get("info"))
        title = clean_text(str(info.get("title") or ""))[:200].strip()
        capabilities: list[Capability] = []
        names: set[str] = set()
        for method, path, item, operation in self._operations():
            try:
                capability = self._capability(method, path, item, operation, names)
            except (_Skipped, BrokenReference) as why:
                self.skipped.append(f"{method.upper()} {path[:200]}: {why}")
                continue
            names.add(capability.name)
            capabilities.append(capability)
            if len(capabilities) > MOST_OPERATIONS:
                raise TooLarge(
                    f"{title or 'The document'} has more than {MOST_OPERATIONS} operations. Add a document "
                    "with only those that you need."
                )
        if not capabilities:
            why_not = f" Skipped: {'; '.join(self.skipped[:3])}." if self.skipped else ""
            raise MalformedResponse(f"{title or 'The document'} has no operation that can be called.{why_not}")
        servers = sorted({capability.routes[0].address for capability in capabilities})
        host = urlsplit(servers[0]).hostname or "service"
        for problem in (*self.skipped, *self.loose)[:20]:
            log.warning("%s: %s", title or host, problem)
        source = (self.pattern.meta.get("document") or servers[0]).partition("?")[0]
        return Agent(
            id=agent_id(title or host, "service"),
            name=title or host,
            description=clean_text(str(info.get("summary") or info.get("description") or ""))[:_MOST_DESCRIPTION],
            version=str(info.get("version") or "1")[:50],
            provider=clean_text(str(_as_mapping(info.get("contact")).get("name") or ""))[:200] or None,
            tags=("openapi",),
            capabilities=tuple(capabilities),
            source=source,
            card={
                "protocol": "openapi",
                "openapi": self.document.version,
                "title": title,
                "servers": servers,
                "security": sorted(_as_mapping(_as_mapping(content.get("components")).get("securitySchemes"))),
                **({"leftOut": self.skipped[:100]} if self.skipped else {}),
                **({"simplified": self.loose[:100]} if self.loose else {}),
            },
        )

    def _operations(self) -> Iterator[tuple[str, str, Mapping[str, Any], Mapping[str, Any]]]:
        for path, given in _as_mapping(self.document.content.get("paths")).items():
            if not path.startswith("/"):
                continue  # an extension, x-…
            try:
                item = _as_mapping(self.document.follow(given))
            except BrokenReference as why:
                self.skipped.append(f"{path[:200]}: {why}")
                continue
            for method in _METHODS:
                if isinstance(item.get(method), Mapping):
                    yield method, path, item, item[method]

    def _capability(
        self, method: str, path: str, item: Mapping[str, Any], operation: Mapping[str, Any], names: set[str]
    ) -> Capability:
        name = _unique(_operation_name(method, path, operation), names)
        address = self._server(item, operation)
        for detail in DETAIL[DETAIL.index(self.detail) :]:
            schemas = Schemas(self.document, detail=detail)
            form = _Form(self.document, schemas)
            for parameter in self._parameters(item, operation):
                form.add_parameter(parameter)
            form.check_path(path)
            form.add_body(operation.get("requestBody"))
            taken = form.input_schema()
            if accepted(taken):
                break
        else:
            raise _Skipped("its input schema is too complex to validate")
        given, accept = self._response(operation)
        if schemas.broken:
            self.loose.append(f"{name}: {schemas.broken[0]}; any value is accepted there")
        elif detail is not self.detail:
            self.loose.append(f"{name}: its input schema is large, and only partly validated")
        scheme = self._scheme(operation)
        plan = Operation(
            method=method.upper(),
            path=path,
            parameters=tuple(form.parameters),
            body=form.body,
            accept=accept,
            scheme=None if scheme is None else _absolute(scheme.definition, f"{address}/"),
            scopes=() if scheme is None else scheme.scopes,
            key_header=form.key_header,
        )
        # As it comes back from storage, so that a document that did not change gives the same agent.
        made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(plan))
        meta = {**self.pattern.meta, "operation": made}
        # The person named the host that the document came from, or gave the document.
        if self.address is not None and urlsplit(address).netloc != urlsplit(self.address).netloc:
            meta.pop("registered", None)
        if form.key_header is not None:
            meta["keys"] = True
        if scheme is None and not self._sends_plainly(operation):
            meta.pop("secret_header", None)
            meta["open"] = True  # it wants no credential, and gets none
        summary, text = (clean_text(str(operation.get(key) or "")).strip() for key in ("summary", "description"))
        about = f"{summary.rstrip('.')}. {text}" if summary and text and text != summary else summary or text
        return Capability(
            name=name,
            title=summary[:200] or None,
            description=(about or f"{method.upper()} {path}")[:_MOST_DESCRIPTION],
            input_schema=taken,
            output_schema=given,
            tags=tuple(clean_text(str(tag))[:50] for tag in _list(operation.get("tags"))[:10]),
            hints=Hints(
                read_only=method in _SAFE,
                idempotent=method in _SAFE or method in ("put", "delete"),
                consequential=method in ("put", "delete"),
            ),
            deprecated=Deprecation() if operation.get("deprecated") is True else None,
            routes=(replace(self.pattern, address=address, target=name, meta=meta),),
        )

    def _parameters(self, item: Mapping[str, Any], operation: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Those of the operation, and those of its path that it does not replace."""
        found: dict[tuple[str, str], Mapping[str, Any]] = {}
        for given in (*_list(item.get("parameters")), *_list(operation.get("parameters"))):
            parameter = _as_mapping(self.document.follow(given))
            found[str(parameter.get("name")), str(parameter.get("in"))] = parameter
        order = {"path": 0, "query": 1, "header": 2, "cookie": 3}
        return sorted(found.values(), key=lambda one: order.get(str(one.get("in")), 4))

    def _server(self, item: Mapping[str, Any], operation: Mapping[str, Any]) -> str:
        """The first server of the operation, of its path or of the document, its variables at their defaults."""
        levels = (operation.get("servers"), item.get("servers"), self.document.content.get("servers"))
        server = _as_mapping(next((_list(level)[0] for level in levels if _list(level)), {"url": "/"}))
        variables = _as_mapping(server.get("variables"))

        def fill(match: re.Match[str]) -> str:
            default = _as_mapping(variables.get(match[1])).get("default")
            if default is None:
                raise SetupError(f"The server {server.get('url')!r} has a variable {match[1]!r} without a default.")
            return str(default)

        url = re.sub(r"\{([^{}]*)\}", fill, str(server.get("url") or "/"))
        if self.address is not None:
            url = urljoin(self.address.partition("?")[0], url)
        if not url.startswith(("http://", "https://")):
            raise SetupError(
                f"The document names its server as {url[:100]!r}, which is not an absolute address. Add the "
                "document by its address instead of as a file, or add the address of the server to it: "
                f"servers: [{{url: https://…}}]"
            )
        return check_query(url.partition("#")[0].partition("?")[0]).rstrip("/")

    def _scheme(self, operation: Mapping[str, Any]) -> Scheme | None:
        """The scheme that the one credential serves: the named one, else the first that is enough alone."""
        if self.pattern.credential is None:
            return None
        schemes = _as_mapping(_as_mapping(self.document.content.get("components")).get("securitySchemes"))
        wanted = self._requirements(operation)
        chosen = self.pattern.meta.get("secret_header")
        for requirement in wanted:
            if len(requirement) != 1:
                continue
            ((name, scopes),) = requirement.items()
            definition = _as_mapping(self.document.follow(schemes.get(name)))
            found = Scheme(definition, tuple(str(scope) for scope in _list(scopes)))
            if chosen is not None and chosen.lower() not in (name.lower(), str(definition.get("name", "")).lower()):
                continue
            if is_usable(found) or definition.get("type") in ("oauth2", "openIdConnect"):
                return found
        return None

    def _sends_plainly(self, operation: Mapping[str, Any]) -> bool:
        """Whether the credential goes along although no scheme says how: in the named header, or as a token.

        Only where the document does not say that the operation needs none.
        """
        if self.pattern.credential is None:
            return False
        schemes = _as_mapping(_as_mapping(self.document.content.get("components")).get("securitySchemes"))
        if str(self.pattern.meta.get("secret_header")).lower() in {str(name).lower() for name in schemes}:
            return False  # the operator named a scheme, which this operation does not want
        return bool(self._requirements(operation)) or not schemes

    def _requirements(self, operation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        given = operation["security"] if "security" in operation else self.document.content.get("security")
        return [_as_mapping(one) for one in _list(given) if _as_mapping(one)]

    def _response(self, operation: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
        """What a success gives, where every success says so in JSON; and what the request accepts."""
        outputs: list[Any] = []
        media: list[str] = []
        whole = True
        schemas = Schemas(self.document, response=True, detail=self.detail)
        for status, given in _as_mapping(operation.get("responses")).items():
            if not str(status).upper().startswith("2"):
                continue
            try:
                content = _as_mapping(_as_mapping(self.document.follow(given)).get("content"))
            except BrokenReference:
                whole = False
                continue
            media += [str(kind) for kind in content]
            if not content:
                whole = whole and str(status) in ("204", "205")
                outputs.append({"type": "null"})
            elif all(_JSON.fullmatch(_bare(str(kind))) for kind in content):
                outputs += [schemas.convert(_as_mapping(each).get("schema")) for each in content.values()]
            else:
                whole = False
        accept = ", ".join([*dict.fromkeys(kind for kind in media if "*" not in kind)][:10])
        accept = f"{accept}, */*;q=0.1" if accept else "application/json, */*;q=0.5"
        if not whole or schemas.broken or not self.detail.outputs or all(one == {"type": "null"} for one in outputs):
            return None, accept
        joined = outputs[0] if len(outputs) == 1 else {"anyOf": outputs}
        if not isinstance(joined, dict) or not joined:
            return None, accept
        made = schemas.with_defs(joined)
        return (made if accepted(made) else None), accept


class _Form:
    """The input of one operation: one flat object, in which every value has a name of its own."""

    def __init__(self, document: Document, schemas: Schemas):
        self._document = document
        self._schemas = schemas
        self._properties: dict[str, Any] = {}
        self._required: list[str] = []
        self.parameters: list[Parameter] = []
        self.body: Body | None = None
        self.key_header: str | None = None

    def add_parameter(self, given: Mapping[str, Any]) -> None:
        name, where = given.get("name"), given.get("in")
        if not isinstance(name, str) or not name or where not in STYLES:
            raise _Skipped(f"it has a parameter {str(name)[:60]!r} in {str(where)[:60]!r}")
        place = cast("Place", where)
        if place == "header" and name.lower() in _NOT_PARAMETERS:
            return
        if place == "header" and name.lower() == _KEY:
            self.key_header = name
        style = given.get("style") or STYLES[place][0]
        if style not in STYLES[place]:
            raise _Skipped(
                f"its parameter {name[:60]!r} has the style {str(style)[:60]!r}, which is not valid in a {place}"
            )
        content = _as_mapping(given.get("content"))
        schema = _as_mapping(next(iter(content.values()), {})).get("schema") if content else given.get("schema")
        converted = self._schemas.convert(schema)
        notes: dict[str, Any] = {"description": str(given["description"])[:1_000]} if given.get("description") else {}
        if given.get("deprecated") is True:
            notes["deprecated"] = True
        if "example" in given and isinstance(converted, dict) and "examples" not in converted:
            notes["examples"] = [given["example"]]
        key = self._add(name, place, _with_notes(converted, notes))
        if (given.get("required") is True or place == "path") and name.lower() != _KEY:
            self._required.append(key)
        explode = given.get("explode")
        self.parameters.append(
            Parameter(
                name,
                place,
                str(style),
                explode if isinstance(explode, bool) else style == "form",
                None if key == name else key,
                given.get("allowReserved") is True,
                bool(content),
            )
        )

    def check_path(self, path: str) -> None:
        """Refuse a template and parameters that do not fit each other: the request would go to another place."""
        wanted = set(re.findall(r"\{([^{}]*)\}", path))
        known = {parameter.name for parameter in self.parameters if parameter.place == "path"}
        if missing := sorted(wanted - known):
            raise _Skipped(f"its path contains {{{missing[0][:60]}}}, which is not a parameter")
        unused = known - wanted
        self.parameters = [one for one in self.parameters if one.place != "path" or one.name in wanted]
        for name in unused:
            self._properties.pop(name, None)
            self._required = [one for one in self._required if one != name]

    def add_body(self, given: Any) -> None:
        body = _as_mapping(self._document.follow(given))
        content = {_bare(str(kind)): _as_mapping(each) for kind, each in _as_mapping(body.get("content")).items()}
        if not content:
            return
        kind = min(content, key=_preference)
        schema, needed = content[kind].get("schema"), body.get("required") is True
        resolved = self._schemas.resolve(schema)
        encoding = {
            str(name): {key: value for key, value in _as_mapping(each).items() if key in _ENCODING}
            for name, each in _as_mapping(content[kind].get("encoding")).items()
        }
        is_form = kind in ("multipart/form-data", "application/x-www-form-urlencoded")
        if is_form or (_JSON.fullmatch(kind) and self._spreads(resolved, needed)):
            media_type = kind if is_form or "*" not in kind else "application/json"
            self._spread(media_type, resolved, needed, encoding)
            return
        about = str(body.get("description") or "")[:1_000]
        if _JSON.fullmatch(kind):
            kind, made = (kind if "*" not in kind else "application/json"), self._schemas.convert(schema)
        elif kind.startswith("text/") or kind.endswith(("xml", "yaml", "javascript", "graphql")):
            made = {"type": "string"}
        else:
            made = FILE
        key = self._add("body", "body", _with_notes(made, {"description": about} if about else {}))
        if needed:
            self._required.append(key)
        self.body = Body(kind, whole=key, files=(key,) if made is FILE else ())

    def input_schema(self) -> dict[str, Any]:
        made: dict[str, Any] = {"type": "object", "properties": self._properties, "additionalProperties": False}
        if self._required:
            made["required"] = self._required
        return self._schemas.with_defs(made)

    def _spreads(self, schema: Mapping[str, Any], needed: bool) -> bool:
        """Whether the properties of a body can stand beside the parameters: a plain object whose names are known."""
        plain = not _NOT_PLAIN & set(schema)
        closed = schema.get("additionalProperties", False) is False and not schema.get("minProperties")
        names = schema.get("properties")
        return (
            plain
            and closed
            and isinstance(names, Mapping)
            and bool(names)
            and schema.get("type", "object") == "object"
            and schema.get("nullable") is not True
            and (needed or not schema.get("required"))
        )

    def _spread(self, kind: str, schema: Mapping[str, Any], needed: bool, encoding: dict[str, dict[str, Any]]) -> None:
        converted = self._schemas.convert(schema)
        properties: Mapping[str, Any] = converted.get("properties") or {}
        required = converted.get("required") or []
        fields, files = {}, []
        for name, each in properties.items():
            made = each
            if kind == "multipart/form-data" and (file := self._file(_as_mapping(schema.get("properties")).get(name))):
                made = file
            key = self._add(name, "body", made)
            fields[key] = name
            if made is not each:
                files.append(key)
            if needed and name in required:
                self._required.append(key)
        self.body = Body(kind, fields=fields, files=tuple(files), encoding=encoding)

    def _file(self, schema: Any) -> dict[str, Any] | None:
        """The schema of a file, or of several, where a part of a form is one."""
        resolved = self._schemas.resolve(schema)
        kind = resolved.get("type")
        if kind == "array":
            inner = self._file(resolved.get("items"))
            return {"type": "array", "items": inner} if inner is not None else None
        binary = resolved.get("format") == "binary" or "contentMediaType" in resolved
        notes = {"description": str(resolved["description"])[:1_000]} if resolved.get("description") else {}
        return {**FILE, **notes} if kind in ("string", None) and binary else None

    def _add(self, name: str, place: str, schema: Any) -> str:
        key = name
        while key in self._properties:
            key = f"{key}_{place}"
        self._properties[key] = schema
        return key


def _absolute(scheme: Mapping[str, Any], server: str) -> dict[str, Any]:
    """A security scheme whose addresses are whole: in a document they may be relative to the server."""
    made = dict(scheme)
    if isinstance(made.get("openIdConnectUrl"), str):
        made["openIdConnectUrl"] = urljoin(server, made["openIdConnectUrl"])
    flow = _as_mapping(_as_mapping(made.get("flows")).get("clientCredentials"))
    if isinstance(flow.get("tokenUrl"), str):
        flow = {**flow, "tokenUrl": urljoin(server, flow["tokenUrl"])}
        made["flows"] = {**made["flows"], "clientCredentials": flow}
    return made


def _operation_name(method: str, path: str, operation: Mapping[str, Any]) -> str:
    given = operation.get("operationId")
    name = _NAME.sub("_", given).strip("_")[:100] if isinstance(given, str) else ""
    return name or _NAME.sub("_", f"{method}_{path.strip('/')}").strip("_")[:100]


def _unique(name: str, names: set[str]) -> str:
    found, number = name, 1
    while found in names:
        number += 1
        found = f"{name}_{number}"
    return found


def _with_notes(schema: Any, notes: Mapping[str, Any]) -> Any:
    return {**schema, **notes} if notes and isinstance(schema, dict) else schema


def _preference(kind: str) -> tuple[int, str]:
    """The order in which kinds of a body are chosen."""
    if _JSON.fullmatch(kind):
        return (0 if kind == "application/json" else 1), kind
    order = {"multipart/form-data": 2, "application/x-www-form-urlencoded": 3}
    return order.get(kind, 4 if kind.startswith("text/") else 5), kind


def _bare(kind: str) -> str:
    return kind.partition(";")[0].strip().lower()


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
