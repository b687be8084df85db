"""The connector of protocol ``nlweb``: a website becomes an Agent, its actions capabilities, a call a visit.

A call brings its input by the schema of the action, or a sentence; what the sentence leaves open is asked. An action
with consequences is confirmed before it is done. How a visit goes is known in ``visit``, how a sentence is read in
``commands``. The address of a route is the website's, its target the action; no target means the action is found by the
sentence. Input, retries and deadlines are the business of the call chain: what it has checked is not checked again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agent3.calls.outcomes import HEALS, NOTICES, SOURCES, UNDERSTOOD, UNTRUSTED, failed_by
from agent3.definitions import ActionType, NLWebAction, NLWebActionInfo, NLWebInterface
from agent3.env import REAL, Env
from agent3.errors import (
    Agent3Error,
    AgentNotFound,
    Declined,
    Interrupted,
    MalformedResponse,
    SetupError,
    TargetError,
    Unavailable,
    ValidationError,
)
from agent3.gateway.which import write_question
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
    Traits,
    agent_id,
    text_of,
)
from agent3.protocols.nlweb.commands import COMMAND, Meaning, actions_of, join_follow_up
from agent3.protocols.nlweb.steps.parameters import input_schema, prepare
from agent3.protocols.nlweb.visit.login import Login
from agent3.protocols.nlweb.visit.throttle import Pace
from agent3.protocols.nlweb.visit.visits import Visited, Visits
from agent3.schema import compile as compile_schema
from agent3.schema import json_type
from agent3.schema.bounds import RESULTS
from agent3.sentences import Forbidden, Understood
from agent3.sentences.lexicon import detect_language
from agent3.sentences.questions import AGAIN, decline
from agent3.sentences.tokens import LONGEST

if TYPE_CHECKING:
    from agent3.protocols.nlweb.driver import Confirm, Driven
    from agent3.protocols.nlweb.visit.page_session import Session

__all__ = ["COMMAND", "NLWebConnector", "agent_of", "interface_of", "owner_of"]

_SECONDS = 60.0
"""What one attempt at an action may take; the time of the whole call bounds it too."""
_MAX_OFFERED = 50
_ACTION, _CONFIRM = "agent3:action", "agent3:confirm"
"""Ids of our own questions. No parameter has such a name: a placeholder cannot contain a colon."""
_OVERLOADED = frozenset({502, 503, 504})
"""Statuses that concern the whole site and not one page."""
_YES = {"type": "boolean", "title": "Continue?"}
_LONGEST_PREVIEW = 500
_SAFE = ("GET", "HEAD", "OPTIONS")
_EMPTY = ("empty", "vacío")
_WHY_SURE = ("this has consequences. Do it?", "esto tiene consecuencias. ¿Continuar?")
_WHY_GUESSED = ("this is how the message was understood. Do it?", "así se ha entendido el mensaje. ¿Continuar?")


Understand = Callable[[str, Agent, Sequence[Capability], Sequence[str]], Awaitable[Meaning]]
"""Which of the offered actions of a website a sentence means, given the sentences before it."""
Find = Callable[[str], Awaitable[Agent]]
"""From an id to the agent; AgentNotFound if there is none."""
May = Callable[[Principal, Agent, str], bool]
"""Whether a principal may call an agent's capability."""
Charge = Callable[[Call, Capability], Awaitable[Failed | None]]
"""Has a call pay as one of an action; the refusal, if it may not."""
Load = Callable[[Path], NLWebInterface]
Drive = Callable[["Session", str, str, "Confirm"], Awaitable["Driven"]]
"""Does on an open page what a sentence says, for the owner of the visit."""


class _Intent(Struct, omit_defaults=True):
    """What is known so far of what the caller wants: the stored state of a call that asks back."""

    action: str | None = None
    slots: dict[str, Any] = {}
    text: str | None = None
    previous: list[str] = []
    """The sentences before the text."""
    guessed: list[str] = []
    """Parameters whose value nothing announced."""
    confirmed: bool = False
    agreed: list[str] = []
    """What was answered with yes, of what is done on the page itself."""


class _Unconfirmed(Exception):
    """Something with consequences comes next, and nobody has said yes to it."""

    def __init__(self, what: str):
        super().__init__(what)
        self.what = what


class NLWebConnector:
    """Reaches websites. One for each gateway; it belongs to the event loop it is used in.

    ``find`` knows interfaces by id, ``may`` which actions a caller may use, ``charge`` what they cost, ``understand``
    reads sentences, ``load`` reads files, and ``sites`` speaks to websites that answer questions by themselves.
    ``drive``, where there is one, does on the page what no action is for.
    """

    traits: ClassVar[Traits] = Traits(asks_for_values=True, cost_standards=((1, "web_per_call"), (50, "web_per_fifty")))

    def __init__(
        self,
        visits: Visits,
        *,
        understand: Understand,
        load: Load,
        find: Find | None = None,
        may: May | None = None,
        charge: Charge | None = None,
        sites: Connector | None = None,
        drive: Drive | None = None,
        env: Env = REAL,
    ):
        self._drive = drive
        self.visits = visits
        self._understand = understand
        self._load = load
        self._find = find
        self._may = may
        self._charge = charge
        self._sites = sites
        self._env = env

    async def describe(self, address: str) -> Agent:
        """The agent of an interface file, of a website that answers questions, or of an interface by its id."""
        if address.startswith(("http://", "https://")):
            if self._sites is None:
                raise SetupError(f"{address} is a website. Create an interface for it: agent3 web learn {address}")
            return await self._sites.describe(address)
        path = Path(address)
        if path.suffix in (".yaml", ".yml", ".json"):
            return agent_of(self._load(path))
        return agent_of(await self._get_interface(address))

    async def call(self, call: Call) -> Outcome:
        """One turn of an action. Cancelling it ends the visit."""
        assert call.route is not None
        if self._sites is not None and call.route.meta.get("speaks") == "ask":
            return await self._sites.call(call)
        live = call.live
        live.asking = False  # true only while a page is loading: otherwise it is us, or the interface, that is slow
        try:
            return await self._take_turn(call, call.route)
        except Agent3Error as error:
            # The breaker blames the site for what every caller would meet, not for what came of one page or action.
            if isinstance(error, Unavailable):
                overloaded = "unreached" in error.data or error.data.get("status") in _OVERLOADED
                live.asking = live.asking or overloaded
            elif isinstance(error, MalformedResponse):
                live.asking = False
            return failed_by(error)

    async def aclose(self) -> None:
        await self.visits.aclose()
        if self._sites is not None:
            await self._sites.aclose()

    # A turn

    async def _take_turn(self, call: Call, route: Route) -> Outcome:
        if call.entry == "cancel":
            return Failed("canceled", "The visit was cancelled.")
        if call.entry == "attach":
            raise Interrupted(f"{call.agent}/{call.capability} was interrupted. Call it again.")
        agent: Agent | None = call.live.agent
        name = str(route.meta.get("interface") or call.agent)
        own = agent if agent is not None and (agent.id == name or "interface" not in route.meta) else None
        interface = await self._get_interface(name) if own is None else interface_of(own)
        site = own or agent_of(interface)
        if call.entry == "answer":
            intent = await self._read_answers(call, site)
        else:
            intent = await self._read_start(call, route, site)
        if isinstance(intent, Needs):
            return intent
        if intent.action is None:
            return await self._act_on_page(call, interface, intent)
        steps, parameters = prepare(interface, intent.action, intent.slots, checked=True)
        if own is None or intent.text is not None:
            # The chain checked the input against the capability's schema. A sentence has not been checked, nor has the
            # input of a call that comes without an agent.
            compile_schema(input_schema(interface, intent.action)).check(parameters)
        info = interface.info.get(intent.action) or NLWebActionInfo()
        # What was partly guessed is confirmed as well, unless it only looks something up.
        doubtful = info.hints.consequential or (intent.guessed and not info.hints.read_only)
        if doubtful and not intent.confirmed:
            spanish = detect_language(intent.text or text_of(call.parts)) == "es"
            properties = input_schema(interface, intent.action).get("properties", {})
            empty = dict.fromkeys((name for name in properties if name not in parameters), _EMPTY[spanish])
            given = ", ".join(f"{name}: {value}" for name, value in {**intent.slots, **empty}.items())
            at = f"{'en' if spanish else 'at'} {interface.name}{f' ({given})' if given else ''}"
            why = _WHY_SURE[spanish] if info.hints.consequential else _WHY_GUESSED[spanish]
            shown = "" if info.preview is None else await self._preview(call, interface, info.preview, intent.slots)
            asked = f"{(info.description or intent.action).rstrip('.')} {at}: {shown and f'“{shown}”; '}{why}"
            question = Question(_CONFIRM, asked, _YES)
            return Needs((question,), state=msgspec.to_builtins(intent))
        action = site.capability(intent.action)
        if route.target is None and action is not None and self._charge is not None:
            # Said in words, an action costs what it costs by its name, and may be done no more often.
            refusal = await self._charge(call, action)
            if refusal is not None:
                return refusal
        # The one place that knows where the chain keeps the end of the call.
        expires: float | None = call.live.expires
        try:
            visited = await self.visits.visit(
                interface,
                intent.action,
                steps,
                parameters,
                principal=owner_of(call.principal),
                seconds=None if expires is None else expires - self._env.monotonic(),
                on_step=lambda label, number, total: call.emit(
                    Event("progress", text=f"step {label}", done=float(number - 1), total=float(total))
                ),
                on_waiting=partial(setattr, call.live, "asking"),
            )
        except Interrupted as error:
            # The browser died. The chain repeats the visit in another one, where that does no harm.
            return replace(failed_by(error), retryable=not error.sent or call.idempotent)
        if own is None or route.target is None:
            # Likewise, the chain holds a result against the schema of the capability that was called.
            _check_result(visited.result, interface, intent.action)
        outcome = _make_outcome(visited, interface, intent.action)
        if intent.text is None:
            return outcome
        return replace(outcome, meta={**outcome.meta, UNDERSTOOD: {"input": intent.slots, "guessed": intent.guessed}})

    async def _act_on_page(self, call: Call, interface: NLWebInterface, intent: _Intent) -> Outcome:
        """Do on the page what none of the actions is for. What has consequences is asked about first.

        After a yes it begins anew, so that nobody's page waits for an answer; not where something was sent by then.
        """
        if self._drive is None:
            raise SetupError("web.acts_on_pages was switched off in the meantime, and nothing was done.")
        drive, owner, sent = self._drive, owner_of(call.principal), list[str]()

        def confirm(what: str) -> None:
            if what not in intent.agreed:
                raise _Unconfirmed(what)

        async def work(session: Session) -> Driven:
            # All that a page can send but by reading: what is repeated might be done twice.
            session.page.context.on("request", lambda one: sent.append(one.url) if one.method not in _SAFE else None)
            session.page.on("websocket", lambda socket: socket.on("framesent", lambda _: sent.append(socket.url)))
            return await drive(session, join_follow_up(intent.text or "", intent.previous), owner, confirm)

        start = NLWebAction(action_type=ActionType.NAVIGATE, value=interface.base_url)
        opened = interface.model_copy(update={"actions": {**interface.actions, COMMAND: [start]}})
        expires: float | None = call.live.expires
        try:
            visited = await self.visits.visit(
                opened,
                COMMAND,
                [start],
                {},
                principal=owner,
                seconds=_SECONDS if expires is None else expires - self._env.monotonic(),
                on_waiting=partial(setattr, call.live, "asking"),
                then=work,
            )
        except _Unconfirmed as asked:
            if sent:
                raise TargetError(
                    f"{interface.name} has already received data, and now asks for something that you have "
                    f"not confirmed: {asked.what}. The visit ended there."
                ) from None
            intent.agreed = [*intent.agreed, asked.what]
            spanish = detect_language(intent.text or "") == "es"
            question = Question(_CONFIRM, f"{asked.what} ({interface.name}): {_WHY_SURE[spanish]}", _YES)
            return Needs((question,), state=msgspec.to_builtins(intent))
        driven: Driven = visited.result
        if driven.complete:
            done = {"done": driven.done, "page": visited.page, **({"seen": driven.seen} if driven.seen else {})}
            return Done((Part(data=done),), meta={"action": COMMAND})
        if not driven.done:
            return Needs(
                (Question(AGAIN, driven.question or "", {"type": "string"}),), state=msgspec.to_builtins(intent)
            )
        raise TargetError(
            f"{interface.name}: only a part was done: {', '.join(driven.done)}. {driven.question}",
            data={"done": driven.done, "left": driven.left},
        )

    async def _preview(self, call: Call, interface: NLWebInterface, action: str, slots: Mapping[str, Any]) -> str:
        """What an action that only reads gives, for who confirms another one; why not, where it fails."""
        agent = call.live.agent
        if self._may is not None and agent is not None and not self._may(call.principal, agent, action):
            return ""
        named = input_schema(interface, action).get("properties", {})
        expires: float | None = call.live.expires
        try:
            steps, given = prepare(interface, action, {name: slots[name] for name in named if name in slots})
            visited = await self.visits.visit(
                interface,
                action,
                steps,
                given,
                principal=owner_of(call.principal),
                seconds=None if expires is None else expires - self._env.monotonic(),
            )
        except Agent3Error as error:
            return f"{action}: {error.message}"[:_LONGEST_PREVIEW]
        return " ".join(_say(visited.answer(interface, action)).split())[:_LONGEST_PREVIEW]

    async def _read_start(self, call: Call, route: Route, site: Agent) -> _Intent | Needs:
        """The intent of a first turn: an action with its input, or what a sentence means."""
        if route.target is not None and call.input is not None:
            if not isinstance(call.input, dict):
                raise ValidationError(f"{route.target} takes an object, got {json_type(call.input)}.")
            return _Intent(route.target, {name: value for name, value in call.input.items() if value is not None})
        given = call.input if isinstance(call.input, dict) else {}
        text = text_of(call.parts) if call.input is None else str(given.get("text") or "")
        previous = [str(sentence) for sentence in given.get("previous") or ()]
        return await self._read_sentence(call, site, text, previous, route.target)

    async def _read_answers(self, call: Call, site: Agent) -> _Intent | Needs:
        """The stored intent with the caller's answers; Declined if one of them is no."""
        intent = msgspec.convert(call.state or {}, _Intent)
        for question in call.questions:
            answer = call.answers.get(question.id)
            value = answer.data if answer is not None else None
            if isinstance(value, dict) and len(value) == 1:  # a form with one field
                value = next(iter(value.values()))
            refused = answer is None or answer.action != "accept" or (question.id == _CONFIRM and value is not True)
            if refused:
                raise Declined(f"{call.agent}: {decline(question, detect_language(intent.text or question.text))}")
            if question.id == _CONFIRM:
                intent.confirmed = True
            elif question.id == _ACTION:  # it is filled from the sentence
                return await self._read_sentence(call, site, intent.text or "", intent.previous, str(value))
            elif question.id == AGAIN:
                return await self._read_sentence(call, site, str(value), intent.previous, intent.action)
            else:
                intent.slots = {**intent.slots, question.id: value}
        return intent

    async def _read_sentence(
        self, call: Call, site: Agent, text: str, previous: Sequence[str], action: str | None
    ) -> _Intent | Needs:
        """What a sentence means, of all actions or of one; Needs for what it leaves open."""
        offered = actions_of(site)
        every = len(offered)
        if self._may is not None and call.live.agent is not None:
            offered = [one for one in offered if self._may(call.principal, call.live.agent, one.name)]
        may_act = self._drive is not None and action is None and len(offered) == every
        if action is not None:
            offered = [one for one in offered if one.name == action]
        if not offered:
            raise ValidationError(f"{site.name} has no action{(f' {action!r}' if action else '')} that you may call.")
        found = await self._understand(text, site, offered, previous)
        if isinstance(found.reading, Forbidden):
            raise Declined(found.refusal or "", data={"reason": found.reading.why})
        guessed = [*found.reading.guessed] if isinstance(found.reading, Understood) else []
        name = found.action.name if found.action is not None else None
        intent = _Intent(name, found.input, text, [*previous], guessed)
        questions = found.questions
        if name is None and may_act and len(text) <= LONGEST:
            return intent
        if name is None:
            names = [one.name for one in offered][:_MAX_OFFERED]
            asked = write_question(site.name, offered, text)
            questions = (Question(_ACTION, asked, {"type": "string", "enum": names}),)
        return Needs(questions, state=msgspec.to_builtins(intent)) if questions else intent

    async def _get_interface(self, name: str) -> NLWebInterface:
        if self._find is None:
            raise AgentNotFound(f"Interface {name!r} does not exist. Name the file that contains it.")
        return interface_of(await self._find(name))


# Describing a website


def agent_of(interface: NLWebInterface) -> Agent:
    """A website as an agent: each action a capability, and one more that takes a sentence.

    SetupError if its login or its pace cannot be used.
    """
    login = Login.of(interface)
    Pace.of(interface)
    route = Route("nlweb", interface.base_url, meta={"interface": agent_id(interface.interface_id, "website")})
    untrusted = interface.metadata.get("untrusted") or ()
    capabilities, phrases = [], []
    for name in interface.actions:
        if login is not None and name == login.action:
            continue
        info = interface.info.get(name) or NLWebActionInfo()
        hints = info.hints
        phrases += info.phrases[:1]
        capabilities.append(
            Capability(
                name=name,
                description=info.description or f"{name.replace('_', ' ')} at {interface.name}",
                input_schema=input_schema(interface, name),
                output_schema=info.output_schema,
                phrases=tuple(info.phrases),
                tags=("untrusted",) if name in untrusted else (),
                hints=Hints(read_only=hints.read_only, idempotent=hints.idempotent, consequential=hints.consequential),
                routes=(replace(route, target=name),),
                price=Price(call=info.cost),
                timeout=_SECONDS,
                meta={"confirms": "itself"},
            )
        )
    if capabilities and all(capability.name != COMMAND for capability in capabilities):
        capabilities.append(
            Capability(
                name=COMMAND,
                description=f"Say in words what you want from {interface.name}. It asks if something is unclear.",
                input_schema=_COMMAND_INPUT,
                phrases=tuple(phrases[:5]),
                routes=(route,),
                timeout=_SECONDS,
                meta={"reads": "commands"},
            )
        )
    return Agent(
        id=agent_id(interface.interface_id, "website"),
        name=interface.name,
        description=interface.description,
        version=interface.version,
        tags=("nlweb",),
        capabilities=tuple(capabilities),
        source=interface.base_url,
        card={"protocol": "nlweb", "interface": interface.model_dump(mode="json", exclude_defaults=True)},
    )


_COMMAND_INPUT = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "minLength": 1, "description": "What you want"},
        "previous": {
            "type": "array",
            "items": {"type": "string"},
            "maxItems": 50,
            "description": "Your earlier messages, the latest last",
        },
    },
    "required": ["text"],
    "additionalProperties": False,
}


def interface_of(agent: Agent) -> NLWebInterface:
    """The interface that an agent was made of; AgentNotFound if it is not such a website."""
    body = agent.card.get("interface")
    if agent.card.get("protocol") != "nlweb" or not isinstance(body, dict):
        raise AgentNotFound(f"{agent.id!r} is not a website with an interface. Add its interface file with agent3 add.")
    return NLWebInterface.from_document(body)


# Around a visit


def owner_of(principal: Principal) -> str:
    """Whose cookies they are: the id, or a JSON list with the tenant, which no id can be mistaken for."""
    if principal.tenant is None and not principal.id.startswith("["):
        return principal.id
    return msgspec.json.encode([principal.tenant, principal.id]).decode()


def _say(result: Any) -> str:
    """The values of a result as a text."""
    if isinstance(result, Mapping):
        return ", ".join(filter(None, map(_say, result.values())))
    if isinstance(result, list):
        return "; ".join(filter(None, map(_say, result)))
    return "" if result is None or isinstance(result, bytes) else str(result)


def _check_result(result: Any, interface: NLWebInterface, action: str) -> None:
    """MalformedResponse if a result breaks the schema of its action. Pictures are not JSON, and have no schema."""
    info = interface.info.get(action)
    values = result if isinstance(result, list) else [result]
    if info is None or info.output_schema is None or any(isinstance(value, bytes) for value in values):
        return
    try:
        compile_schema(info.output_schema).check(result, what="result", limits=RESULTS)
    except ValidationError as error:
        raise MalformedResponse(
            f"{action} of {interface.name!r} returned something that does not match its own schema: {error.message}",
            data=error.data,
        ) from None


def _make_outcome(visited: Visited, interface: NLWebInterface, action: str) -> Done:
    """The outcome of a visit: pictures as such, everything else as data."""
    result = visited.answer(interface, action)
    has_pictures = isinstance(result, list) and any(isinstance(value, bytes) for value in result)
    values = result if has_pictures else [result]
    parts = tuple(
        Part(raw=value, media_type="image/png") if isinstance(value, bytes) else Part(data=value) for value in values
    )
    meta: dict[str, Any] = {"action": action}
    details = {
        SOURCES: msgspec.to_builtins(visited.sources),
        HEALS: visited.heals,
        NOTICES: visited.notices,
        UNTRUSTED: visited.tools,
    }
    meta |= {key: values for key, values in details.items() if values}
    return Done(parts, meta=meta)
