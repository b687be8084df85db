"""``A2AClient``: a conversation with one A2A agent, whatever generation and binding it speaks.

Everything is asynchronous and in the shapes of 1.0; ``SyncA2AClient`` is the same for code that is not. A client sends
through the outbound gate like everything else, but runs under no other step: who wants retries, breakers, limits and a
record adds the agent to a gateway and calls it there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from agent3 import bridge
from agent3.definitions import AgentCard
from agent3.env import REAL
from agent3.errors import JobNotFound, SetupError, ValidationError
from agent3.identity.secrets import EnvironmentVault, Secret
from agent3.protocols.a2a.cards import cards
from agent3.protocols.a2a.cards.extensions import SEARCH
from agent3.protocols.a2a.peer.bindings import How, Place, grpc_url
from agent3.protocols.a2a.peer.card_discovery import Found, find, signature_of
from agent3.protocols.a2a.peer.credentials import Credential
from agent3.protocols.a2a.peer.peers import SPOKEN, Peer, opened_for
from agent3.protocols.a2a.wire.types import (
    CancelTask,
    CreatePush,
    DeletePush,
    GetCard,
    GetPush,
    GetTask,
    Item,
    ListPush,
    ListTasks,
    Message,
    Part,
    Push,
    PushPage,
    Reply,
    Request,
    Role,
    Search,
    Send,
    Sending,
    State,
    Subscribe,
    Task,
    TaskPage,
)
from agent3.security.outbound import Gate, Policy

__all__ = ["A2AClient", "SyncA2AClient"]

V = TypeVar("V")
Said = str | Message | Mapping[str, Any] | Sequence[Part]
"""What can be said: words, data, parts, or a whole message."""


class A2AClient:
    """One agent. It belongs to the event loop it is used in; many requests may be under way at once.

    Made by ``connect``; ``async with`` closes it. Errors of the agent come as errors of ours: ``JobNotFound`` for a
    task that it does not know, ``TargetRefused`` where it refuses our credential, ``ValidationError`` for what it does
    not understand.
    """

    def __init__(self, peer: Peer, seconds: float = 300.0):
        self._peer = peer
        self._seconds = seconds

    @classmethod
    async def connect(
        cls,
        agent: str | AgentCard | Mapping[str, Any],
        credential: str | Secret | None = None,
        *,
        policy: Policy | None = None,
        extensions: Sequence[str] = (),
        timeout: float = 300.0,
    ) -> Self:
        """A client of the agent at an address, or of a card. The card is found from the address of agent or site.

        ``credential`` is a reference such as ``env:NAME``, with the header that it goes into before it where the card
        does not say it (``X-API-Key=env:NAME``), or a ``Secret``. An agent that was named here may be on this machine
        or in a private network; ``policy`` bounds everything else. ``extensions`` are those that you speak yourself.
        """
        header, secret = await _secret(credential)
        address = agent if isinstance(agent, str) else _address(agent)
        gate = Gate(opened_for(replace(policy or Policy(), total_timeout=timeout), address))
        try:
            found = await find(gate, address, secret, header) if isinstance(agent, str) else _given(agent, address)
        except BaseException:
            await gate.aclose()
            raise
        known = Credential(found.card, secret, header, gate, found.url)
        return cls(Peer(found, gate, known, extensions=SPOKEN | {SEARCH, *extensions}), timeout)

    @property
    def card(self) -> AgentCard:
        """What the agent says of itself."""
        return self._peer.card

    @property
    def spoken(self) -> Place | None:
        """Where and in which generation and binding a message was last taken; None before the first."""
        return self._peer.place

    async def send(
        self, said: Said, *, task: str | None = None, context: str | None = None, wait: bool = True, **more: Any
    ) -> Reply:
        """Say something; the task that came of it, or a mere message. With ``wait``, when it has ended or asks.

        ``task`` answers what a task asked. ``more`` are ``skill``, ``metadata``, ``history_length``, ``output_modes``
        and ``push``, a configuration to be told by. An agent that does not block is asked until its task has ended.
        """
        request = _request(said, task, context, wait, **more)
        reply = await self._peer.ask(request, self._how())
        assert isinstance(reply, (Task, Message))
        if not wait or isinstance(reply, Message) or reply.status.state not in (State.SUBMITTED, State.WORKING):
            return reply
        async with aclosing(self._peer.poll(reply.id, self._how())) as tasks:
            async for task_now in tasks:
                reply = task_now
        return reply

    async def stream(
        self, said: Said, *, task: str | None = None, context: str | None = None, **more: Any
    ) -> AsyncGenerator[Item, None]:
        """Say something, and hear everything that follows until the task ends or asks; broken streams are resumed.

        A Task among the items is a snapshot that counts for all that came before it. An agent that does not stream
        is asked, and its task told.
        """
        request = _request(said, task, context, True, stream=self._peer.streams, **more)
        if not self._peer.streams:
            yield await self.send(said, task=task, context=context, **more)
            return
        async with aclosing(self._peer.follow(request, self._how())) as items:
            async for item in items:
                yield item

    async def subscribe(self, task: str) -> AsyncGenerator[Item, None]:
        """Hear of a task that goes on, until it ends or asks."""
        async with aclosing(self._peer.follow(Subscribe(id=task), self._how())) as items:
            async for item in items:
                yield item

    async def get(self, task: str, history_length: int | None = None) -> Task:
        """A task as it stands."""
        return await self._ask(GetTask(id=task, history_length=history_length), Task)

    async def list(self, **filters: Any) -> TaskPage:
        """Our tasks at the agent: ``context_id``, ``status``, ``page_size``, ``page_token`` and the like choose."""
        return await self._ask(ListTasks(**filters), TaskPage)

    async def search(self, query: str, page_size: int | None = None) -> TaskPage:
        """Our tasks in which these words stand, at an agent that declares ``tasks/search``."""
        return await self._ask(Search(query=query, page_size=page_size), TaskPage)

    async def cancel(self, task: str) -> Task:
        """Stop a task."""
        return await self._ask(CancelTask(id=task), Task)

    async def set_push(self, task: str, push: Push) -> Push:
        """Have somebody told of a task."""
        return await self._ask(CreatePush(task_id=task, config=push), Push)

    async def get_push(self, task: str, config: str | None = None) -> Push:
        """One configuration of a task; without an id its first. JobNotFound where there is none."""
        try:
            return await self._ask(GetPush(task_id=task, id=config), Push)
        except ValidationError:
            if config is not None:
                raise
        # From 1.0 on a configuration is asked for by its id alone.
        found = await self.list_push(task)
        if not found.configs:
            raise JobNotFound(f"Task {task[:100]} has no push configuration.")
        return found.configs[0]

    async def list_push(self, task: str) -> PushPage:
        """All configurations of a task."""
        return await self._ask(ListPush(task_id=task), PushPage)

    async def delete_push(self, task: str, config: str) -> None:
        """Have nobody told any more."""
        await self._peer.ask(DeletePush(task_id=task, id=config), self._how())

    async def extended_card(self) -> AgentCard:
        """The card that the agent shows to our credential."""
        return AgentCard.from_wire(await self._ask(GetCard(), dict))

    async def signature(self) -> dict[str, Any]:
        """Whether the card is signed: ``status`` is unsigned, verified, unverified or invalid, and which keys."""
        return await signature_of(self._peer.gate, self._peer.found)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._peer.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.aclose()

    def _how(self) -> How:
        return How(seconds=self._seconds)

    async def _ask(self, request: Request, kind: type[V]) -> V:
        value = await self._peer.ask(request, self._how())
        assert isinstance(value, kind)
        return value


class SyncA2AClient:
    """``A2AClient`` for synchronous code: the same methods, from any thread. Made by ``connect``; close it, or use
    ``with``."""

    def __init__(self, client: A2AClient):
        self._client = client

    @classmethod
    def connect(
        cls, agent: str | AgentCard | Mapping[str, Any], credential: str | Secret | None = None, **options: Any
    ) -> Self:
        """A client of an agent."""
        return cls(bridge.run(A2AClient.connect(agent, credential, **options)))

    @property
    def card(self) -> AgentCard:
        """What the agent says of itself."""
        return self._client.card

    @property
    def spoken(self) -> Place | None:
        """Where and in which generation and binding a message was last taken; None before the first."""
        return self._client.spoken

    def send(self, said: Said, **options: Any) -> Reply:
        """Say something; the task that came of it, or a mere message."""
        return bridge.run(self._client.send(said, **options))

    def stream(self, said: Said, **options: Any) -> Iterator[Item]:
        """Say something, and hear everything that follows."""
        return bridge.iterate(self._client.stream(said, **options))

    def subscribe(self, task: str) -> Iterator[Item]:
        """Hear of a task that goes on."""
        return bridge.iterate(self._client.subscribe(task))

    def get(self, task: str, history_length: int | None = None) -> Task:
        """A task as it stands."""
        return bridge.run(self._client.get(task, history_length))

    def list(self, **filters: Any) -> TaskPage:
        """Our tasks at the agent."""
        return bridge.run(self._client.list(**filters))

    def search(self, query: str, page_size: int | None = None) -> TaskPage:
        """Our tasks in which these words stand, at an agent that declares ``tasks/search``."""
        return bridge.run(self._client.search(query, page_size))

    def cancel(self, task: str) -> Task:
        """Stop a task."""
        return bridge.run(self._client.cancel(task))

    def set_push(self, task: str, push: Push) -> Push:
        """Have somebody told of a task."""
        return bridge.run(self._client.set_push(task, push))

    def get_push(self, task: str, config: str | None = None) -> Push:
        """One configuration of a task; without an id its first."""
        return bridge.run(self._client.get_push(task, config))

    def list_push(self, task: str) -> PushPage:
        """All configurations of a task."""
        return bridge.run(self._client.list_push(task))

    def delete_push(self, task: str, config: str) -> None:
        """Have nobody told any more."""
        bridge.run(self._client.delete_push(task, config))

    def extended_card(self) -> AgentCard:
        """The card that the agent shows to our credential."""
        return bridge.run(self._client.extended_card())

    def signature(self) -> dict[str, Any]:
        """Whether the card is signed, and with which keys."""
        return bridge.run(self._client.signature())

    def close(self) -> None:
        """Close the connections."""
        bridge.run(self._client.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


async def _secret(credential: str | Secret | None) -> tuple[str | None, Secret | None]:
    """The header that carries it, where one was named, and the secret itself."""
    if credential is None or isinstance(credential, Secret):
        return None, credential
    name, found, reference = credential.partition("=")
    header = name if found and ":" not in name else None
    return header, await EnvironmentVault().get(reference if header else credential)


def _given(agent: AgentCard | Mapping[str, Any], address: str) -> Found:
    card = agent if isinstance(agent, AgentCard) else AgentCard.from_wire(agent)
    return Found(url=address, document=cards.document(card) if agent is card else dict(agent), card=card)


def _address(agent: AgentCard | Mapping[str, Any]) -> str:
    """Where the agent of a card is."""
    card = agent if isinstance(agent, AgentCard) else AgentCard.from_wire(agent)
    offered = cards.interfaces(card)
    if not offered:
        raise SetupError(f"The card of {card.name!r} names no address to speak to.")
    first = offered[0][0]
    return grpc_url(first.url) if first.protocol_binding.upper() == "GRPC" else first.url


def _request(
    said: Said,
    task: str | None,
    context: str | None,
    wait: bool,
    *,
    stream: bool = False,
    skill: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    history_length: int | None = None,
    output_modes: Sequence[str] = (),
    push: Push | None = None,
) -> Send:
    more = {**(metadata or {}), **({"skillId": skill} if skill else {})}
    message = (
        said
        if isinstance(said, Message)
        else Message(
            message_id=REAL.id(),
            role=Role.USER,
            parts=_parts(said),
            task_id=task,
            context_id=context,
            metadata=more or None,
        )
    )
    how = Sending(
        accepted_output_modes=tuple(output_modes),
        return_immediately=not wait,
        history_length=history_length,
        push=push,
    )
    return Send(message=message, configuration=how, stream=stream)


def _parts(said: Any) -> tuple[Part, ...]:
    if isinstance(said, str):
        return (Part(text=said),)
    return (Part(data=dict(said)),) if isinstance(said, Mapping) else tuple(said)
