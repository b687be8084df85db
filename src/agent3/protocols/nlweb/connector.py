"""The connector of protocol ``nlweb``: a website becomes an Agent, its actions capabilities, a call a visit.

A call brings its input by the schema of the action, or a sentence; what the sentence leaves open is asked. What has
consequences is confirmed before it is done. How a visit goes is known in ``visits``, how a sentence is read in
``commands``. A route's address is the website's, its target the action; none stands for whatever a sentence means.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from agent3.calls.outcomes import HEALS, NOTICES, UNTRUSTED, failed_by
from agent3.calls.responses import SOURCES
from agent3.definitions import NLWebActionInfo, NLWebInterface
from agent3.errors import (
    Agent3Error,
    AgentNotFound,
    Declined,
    Interrupted,
    MalformedResponse,
    SetupError,
    Unavailable,
    ValidationError,
)
from agent3.model import (
    Agent,
    Call,
    Capability,
    Connector,
    Done,
    Event,
    Failed,
    Hints,
    Needs,
    Outcome,
    Part,
    Price,
    Principal,
    Question,
    Route,
    Usage,
    text_of,
)
from agent3.protocols.nlweb.commands import Resolution
from agent3.protocols.nlweb.steps.preparation import input_schema, prepare
from agent3.protocols.nlweb.steps.scene import Source
from agent3.protocols.nlweb.visit.login import Login
from agent3.protocols.nlweb.visit.throttle import Pace
from agent3.protocols.nlweb.visit.visits import Visits
from agent3.schema import compile as compiled

__all__ = ["COMMAND", "NLWebConnector", "agent_of", "interface_of"]

COMMAND = "command"
"""The capability that takes a sentence and finds out which action it means."""
PREVIOUS = "previous"
"""What it may be given beside the sentence: those before it."""
_SECONDS = 60.0
"""What one attempt at an action may take; the time of the whole call bounds it too."""
_MOST_OFFERED = 50
_ACTION, _CONFIRM = "agent3:action", "agent3:confirm"
"""Questions of the house. No parameter is called so: a placeholder has no colon."""
_OVERLOADED = frozenset({502, 503, 504})
"""Statuses that speak of the whole site and not of one page."""
_YES = {"type": "boolean", "title": "Go on?"}


Resolve = Callable[[str, NLWebInterface, Sequence[str]], Awaitable[Resolution]]
"""What a sentence means on a website, after the sentences that were said before it."""
Find = Callable[[str], Awaitable[Agent]]
"""From an id to the agent; AgentNotFound if there is none."""
May = Callable[[Principal, Agent, str], bool]
"""Whether somebody may call an agent's capability."""
Load = Callable[[Path], NLWebInterface]


class _Wish(Struct, omit_defaults=True):
    """What is known so far of what the caller wants: the state of a call that asks back."""

    action: str | None = None
    slots: dict[str, Any] = {}
    text: str | None = None
    previous: list[str] = []
    """What was said before the text."""
    options: dict[str, list[Any]] = {}
    """Parameters that the sentence gives in a way that can be read in several ways."""
    confirmed: bool = False


class NLWebConnector:
    """Reaches websites. One for each gateway; it belongs to the event loop it is used in.

    ``find`` knows interfaces by id, ``may`` which actions a caller may use in a sentence, ``resolve`` reads sentences,
    ``load`` reads files, and ``sites`` speaks to websites that answer questions by themselves.
    """

    def __init__(
        self,
        visits: Visits,
        *,
        resolve: Resolve,
        load: Load,
        find: Find | None = None,
        may: May | None = None,
        sites: Connector | None = None,
    ):
        self.visits = visits
        self._resolve = resolve
        self._load = load
        self._find = find
        self._may = may
        self._sites = sites

    async def describe(self, address: str) -> Agent:
        """The agent of an interface file, of a website that answers questions, or of an interface by its id."""
        if address.startswith(("http://", "https://")):
            if self._sites is None:
                raise SetupError(f"{address} is a website. Write an interface for it: agent3 web learn {address}")
            return await self._sites.describe(address)
        path = Path(address)
        if path.suffix in (".yaml", ".yml", ".json"):
            return agent_of(self._load(path))
        return agent_of(await self._known(address))

    async def call(self, call: Call) -> Outcome:
        """One turn of an action. Cancelling it ends the visit."""
        assert call.route is not None
        if self._sites is not None and call.route.meta.get("speaks") == "ask":
            return await self._sites.call(call)
        call.live.asking = False  # only while a page is on its way; else it is we who are slow, or the interface
        try:
            return await self._turn(call, call.route)
        except Agent3Error as wrong:
            call.live.asking = _is_silent(wrong, call.live.asking)
            return failed_by(wrong)

    async def aclose(self) -> None:
        """End all visits and their browsers."""
        await self.visits.aclose()
        if self._sites is not None:
            await self._sites.aclose()

    # A turn

    async def _turn(self, call: Call, route: Route) -> Outcome:
        if call.entry == "cancel":
            return Failed("canceled", "The visit was cancelled.")
        if call.entry == "attach":
            raise Interrupted(f"{call.agent}/{call.capability} was interrupted. Call it again.")
        interface = await self._interface(call, route)
        wish = await (self._heard if call.entry == "answer" else self._begun)(call, route, interface)
        if wish.action is None:
            return await self._which(wish, self._narrowed(call, interface))
        if needs := _missing(wish, interface) or _to_confirm(wish, interface):
            return needs
        compiled(input_schema(interface, wish.action)).check(wish.slots)
        read: list[Source] = []
        healed: list[dict[str, Any]] = []
        notices: list[str] = []
        tools: list[str] = []
        result = await self.visits.run(
            interface,
            wish.action,
            wish.slots,
            principal=_owner(call.principal),
            on_step=_telling(call),
            on_read=read.extend,
            on_heal=healed.extend,
            on_notice=notices.extend,
            on_asking=partial(setattr, call.live, "asking"),
            on_tool=tools.extend,
        )
        _require_promised(result, interface, wish.action)
        meta: dict[str, Any] = {"action": wish.action}
        meta |= {SOURCES: msgspec.to_builtins(read)} if read else {}
        meta |= {HEALS: healed} if healed else {}
        meta |= {NOTICES: notices} if notices else {}
        meta |= {UNTRUSTED: tools} if tools else {}
        return Done(_parts(result, route.meta.get("output")), usage=_charged(route, interface, wish.action), meta=meta)

    async def _begun(self, call: Call, route: Route, interface: NLWebInterface) -> _Wish:
        """The wish of a first turn: an action with its input, or what a sentence was understood to mean."""
        if route.target is not None and call.input is not None:
            return _Wish(route.target, _mapped(call.input, route))
        given = call.input if isinstance(call.input, dict) else {}
        text = text_of(call.parts) if call.input is None else str(given.get("text") or "")
        if route.target is not None:
            return await self._understood(text, _only(interface, {route.target}), route.target)
        previous = [str(one) for one in given.get("previous") or ()]
        return await self._understood(text, self._narrowed(call, interface), previous=previous)

    async def _heard(self, call: Call, route: Route, interface: NLWebInterface) -> _Wish:
        """The wish with the answers of the caller in it; an action that was chosen is filled from the sentence."""
        wish = _answered(call)
        if wish.action is not None and not any(one.id == _ACTION for one in call.questions):
            return wish
        allowed = self._narrowed(call, interface)
        if wish.action not in allowed.actions:
            raise ValidationError(f"{interface.name} has no action {wish.action!r} that you can call.")
        only = _only(allowed, {wish.action})
        return await self._understood(wish.text or "", only, wish.action, previous=wish.previous)

    async def _understood(
        self, text: str, interface: NLWebInterface, action: str | None = None, *, previous: Sequence[str] = ()
    ) -> _Wish:
        found = await self._resolve(text, interface, previous)
        known = found.action or action
        meant = next((one for one in found.candidates if one.action == known), None)
        given = found.slots or (meant.slots if meant is not None else {})
        wanted = set(input_schema(interface, known).get("properties", {})) if known else set(given)
        slots = {name: value for name, value in given.items() if name in wanted and value is not None}
        return _Wish(known, slots, text, list(previous), dict(meant.doubts) if meant is not None else {})

    async def _which(self, wish: _Wish, interface: NLWebInterface) -> Outcome:
        found = await self._resolve(wish.text or "", interface, wish.previous)
        likely = [one.action for one in found.candidates if one.action in interface.actions]
        names = [*dict.fromkeys([*likely, *interface.actions])][:_MOST_OFFERED]
        if not names:
            raise ValidationError(f"{interface.name} offers nothing that you can call.")
        text = found.question or f"What do you want of {interface.name}?"
        schema = {"type": "string", "enum": names}
        return Needs((Question(_ACTION, text, schema),), state=msgspec.to_builtins(wish))

    # Finding the interface

    async def _interface(self, call: Call, route: Route) -> NLWebInterface:
        agent: Agent | None = call.live.agent if call.live is not None else None
        name = str(route.meta.get("interface") or call.agent)
        if agent is not None and (agent.id == name or "interface" not in route.meta):
            return interface_of(agent)
        return await self._known(name)

    async def _known(self, name: str) -> NLWebInterface:
        if self._find is None:
            raise AgentNotFound(f"There is no interface {name!r}. Give the file that it is written in.")
        return interface_of(await self._find(name))

    def _narrowed(self, call: Call, interface: NLWebInterface) -> NLWebInterface:
        """The interface with what the caller may use, and without the login, which nobody asks for by a sentence."""
        login = Login.of(interface)
        names = set(interface.actions) - ({login.action} if login else set())
        agent: Agent | None = call.live.agent if call.live is not None else None
        if self._may is not None and agent is not None:
            names = {name for name in names if self._may(call.principal, agent, name)}
        return _only(interface, names)


# Describing


def agent_of(interface: NLWebInterface) -> Agent:
    """A website as an agent: each action a capability, and one more that takes a sentence.

    SetupError if its login or its pace cannot be used.
    """
    login = Login.of(interface)
    Pace.of(interface)
    offered = [name for name in interface.actions if login is None or name != login.action]
    capabilities = [_capability(interface, name) for name in offered]
    if offered and COMMAND not in offered:
        capabilities.append(_command(interface, offered))
    return Agent(
        id=agent_id(interface.interface_id),
        name=interface.name,
        description=interface.description,
        version=interface.version,
        tags=("nlweb",),
        capabilities=tuple(capabilities),
        source=interface.base_url,
        card={"protocol": "nlweb", "interface": interface.model_dump(mode="json", exclude_defaults=True)},
    )


def agent_id(name: str) -> str:
    """A name as an id: small letters, digits, ``.``, ``_`` and ``-``."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.")[:64] or "website"


def interface_of(agent: Agent) -> NLWebInterface:
    """The interface that an agent was made of; AgentNotFound if it is no website."""
    body = agent.card.get("interface")
    if agent.card.get("protocol") != "nlweb" or not isinstance(body, dict):
        raise AgentNotFound(f"{agent.id!r} is no website with an interface. Add the interface's file with agent3 add.")
    return NLWebInterface.from_document(body)


def _capability(interface: NLWebInterface, name: str) -> Capability:
    info = interface.info.get(name) or NLWebActionInfo()
    said = info.hints
    return Capability(
        name=name,
        description=info.description or f"{name.replace('_', ' ')} at {interface.name}",
        input_schema=input_schema(interface, name),
        output_schema=info.output_schema,
        phrases=tuple(info.phrases),
        tags=("untrusted",) if name in (interface.metadata.get("untrusted") or ()) else (),
        hints=Hints(read_only=said.read_only, idempotent=said.idempotent, consequential=said.consequential),
        routes=(_route(interface, name),),
        price=Price(call=info.cost),
        timeout=_SECONDS,
        meta={"reads": "messages"},
    )


def _command(interface: NLWebInterface, offered: list[str]) -> Capability:
    phrases = [one for name in offered if name in interface.info for one in interface.info[name].phrases[:1]]
    return Capability(
        name=COMMAND,
        description=f"Say in words what you want of {interface.name}. It asks back what it cannot tell.",
        input_schema={
            "type": "object",
            "properties": {
                "text": {"type": "string", "minLength": 1, "description": "What you want"},
                PREVIOUS: {
                    "type": "array",
                    "items": {"type": "string"},
                    "maxItems": 50,
                    "description": "What you said before, the latest last",
                },
            },
            "required": ["text"],
            "additionalProperties": False,
        },
        phrases=tuple(phrases[:5]),
        routes=(_route(interface, None),),
        timeout=_SECONDS,
        meta={"reads": "commands"},
    )


def _route(interface: NLWebInterface, target: str | None) -> Route:
    return Route("nlweb", interface.base_url, target, meta={"interface": agent_id(interface.interface_id)})


def _only(interface: NLWebInterface, names: set[str]) -> NLWebInterface:
    actions = {name: steps for name, steps in interface.actions.items() if name in names}
    info = {name: one for name, one in interface.info.items() if name in names}
    return interface.model_copy(update={"actions": actions, "info": info})


# What the caller said, and what is asked back


def _mapped(given: Any, route: Route) -> dict[str, Any]:
    """The input by the names that the action knows; a route that stands in for another one says which are which."""
    if not isinstance(given, dict):
        raise ValidationError(f"{route.target} takes an object, got {type(given).__name__}.")
    names: Mapping[str, str] = route.meta.get("input") or {}
    return {names.get(name, name): value for name, value in given.items() if value is not None}


def _answered(call: Call) -> _Wish:
    """The wish with the answers of the caller in it; Declined if one of them is no."""
    wish = msgspec.convert(call.state or {}, _Wish)
    for question in call.questions:
        answer = call.answers.get(question.id)
        if answer is None or answer.action != "accept" or (question.id == _CONFIRM and _data(answer.data) is not True):
            raise Declined(f"{call.agent}: the question {question.text!r} was answered with no, and nothing was done.")
        if question.id == _CONFIRM:
            wish.confirmed = True
        elif question.id == _ACTION:
            wish.action = str(_data(answer.data))
        else:
            wish.slots = {**wish.slots, question.id: _data(answer.data)}
    return wish


def _data(said: Any) -> Any:
    """The value itself, where a form gave it in an object with one field."""
    return next(iter(said.values())) if isinstance(said, dict) and len(said) == 1 else said


def _missing(wish: _Wish, interface: NLWebInterface) -> Needs | None:
    """A question for each parameter that the action cannot do without; only where a sentence was given."""
    assert wish.action is not None
    if wish.text is None:
        prepare(interface, wish.action, wish.slots)
        return None
    schema = input_schema(interface, wish.action)
    properties: Mapping[str, Any] = schema.get("properties", {})
    wanted = [
        name
        for name in schema.get("required", ())
        if name not in wish.slots and "default" not in properties.get(name, {})
    ]
    questions = tuple(_question(name, properties.get(name, {}), wish.options.get(name)) for name in wanted)
    return Needs(questions, state=msgspec.to_builtins(wish)) if questions else None


def _question(name: str, schema: Mapping[str, Any], options: list[Any] | None) -> Question:
    text = str(schema.get("description") or schema.get("title") or name.replace("_", " ").capitalize())
    return Question(name, f"{text.rstrip('?.')}?", {**schema, "enum": options} if options else dict(schema))


def _to_confirm(wish: _Wish, interface: NLWebInterface) -> Needs | None:
    assert wish.action is not None
    info = interface.info.get(wish.action)
    if wish.confirmed or info is None or not info.hints.consequential:
        return None
    given = ", ".join(f"{name}: {value}" for name, value in wish.slots.items())
    text = (
        f"{info.description or wish.action} at {interface.name}{f' ({given})' if given else ''}: this has consequences."
    )
    return Needs((Question(_CONFIRM, f"{text} Do it?", _YES),), state=msgspec.to_builtins(wish))


# Doing it


def _owner(principal: Principal) -> str:
    """Whose cookies they are: the id, or a list with the tenant, which no id by itself can be taken for."""
    if principal.tenant is None and not principal.id.startswith("["):
        return principal.id
    return msgspec.json.encode([principal.tenant, principal.id]).decode()


def _is_silent(wrong: Agent3Error, asking: bool) -> bool:
    """Whether a failure is the website's silence, which everybody meets, and not what came of one page or action."""
    if isinstance(wrong, Unavailable):
        return asking or "unreached" in wrong.data or wrong.data.get("status") in _OVERLOADED
    return asking and not isinstance(wrong, MalformedResponse)


def _charged(route: Route, interface: NLWebInterface, name: str) -> Usage | None:
    """The cost of the action that a sentence led to. Called by its name, an action has its price already."""
    info = interface.info.get(name)
    return Usage(cost=info.cost) if route.target is None and info is not None and info.cost else None


def _require_promised(result: Any, interface: NLWebInterface, name: str) -> None:
    """Hold a result against the action's own schema, also where a sentence or a stand-in led to it.

    MalformedResponse names the place. Pictures are not JSON, and nothing is promised of them.
    """
    info = interface.info.get(name)
    many = result if isinstance(result, list) else [result]
    if info is None or info.output_schema is None or any(isinstance(one, bytes) for one in many):
        return
    try:
        compiled(info.output_schema).check(result, what="result")
    except ValidationError as wrong:
        raise MalformedResponse(
            f"{name} of {interface.name!r} gave something that breaks its own schema: {wrong.message}", data=wrong.data
        ) from None


def _telling(call: Call) -> Callable[[str, int, int], None]:
    def tell(label: str, number: int, total: int) -> None:
        call.emit(Event("progress", text=f"step {label}", done=float(number - 1), total=float(total)))

    return tell


def _parts(result: Any, field: str | None) -> tuple[Part, ...]:
    """What came of it: pictures as such, everything else as data, under the name that a stand-in must give it."""
    several = result if isinstance(result, list) and any(isinstance(one, bytes) for one in result) else [result]
    if field is not None and len(several) == 1 and not isinstance(result, bytes):
        return (Part(data={field: result}),)
    return tuple(_part(one) for one in several)


def _part(value: Any) -> Part:
    if isinstance(value, bytes):
        return Part(raw=value, media_type="image/png")
    return Part(data=value)
