"""``A2AClient``: a conversation with one A2A agent, in whatever generation and binding it speaks.

Everything is asynchronous and in the types of 1.0; ``SyncA2AClient`` is the same for synchronous code. A client sends
through the outbound gate, but under no other step: for retries, breakers, limits and a ledger, add the agent to a
gateway and call it there.
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
from agent3.errors import JobNotFound, MissingExtra, SetupError, ValidationError
from agent3.identity.secrets import EnvironmentVault, Secret
from agent3.protocols.a2a.cards import cards
from agent3.protocols.a2a.cards.extensions import SEARCH
from agent3.protocols.a2a.peer.bindings import Interface, RequestOptions, spoken
from agent3.protocols.a2a.peer.card_discovery import FoundCard, check_signature, find_card
from agent3.protocols.a2a.peer.credentials import Credential
from agent3.protocols.a2a.peer.peers import EXTENSIONS, Peer
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
"""What can be sent: words, data, parts, or a whole message."""


class A2AClient:
    """One agent. It belongs to one event loop; many requests may run at once.

    Made by ``connect``, closed by ``async with``. Errors of the agent are raised as ours: ``JobNotFound`` for a task
    that it does not know, ``TargetRefused`` if it refuses our credential, ``ValidationError`` for what it does not
    understand.
    """

    def __init__(self, peer: Peer, seconds: float = 300.0):
        if not isinstance(peer, Peer):  # an address, as a user's first try has it
            raise SetupError(
                "Create an A2AClient with connect, which reads the agent's card: await "
                "A2AClient.connect(address). In synchronous code, use SyncA2AClient."
            )
        self._peer = peer
        self._options = RequestOptions(timeout=seconds)

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

        ``credential`` is a reference such as ``env:NAME``, preceded by the header to put it into where the card does
        not say that (``X-API-Key=env:NAME``), or a ``Secret``. An agent that is named here may be on this machine or in
        a private network; ``policy`` bounds everything else. ``extensions`` are those that you support yourself.
        """
        header: str | None = None
        secret = credential if isinstance(credential, Secret) else None
        if isinstance(credential, str):
            name, equals, reference = credential.partition("=")
            header = name if equals and ":" not in name else None
            secret = await EnvironmentVault().get(reference if header else credential)
        card = agent if isinstance(agent, AgentCard) else None if isinstance(agent, str) else AgentCard.from_wire(agent)
        address = agent if isinstance(agent, str) else ""
        if card is not None:
            offered = cards.interfaces(card, spoken())
            if not offered and cards.interfaces(card):
                raise MissingExtra(f"{card.name}, which is only reached over gRPC,", "grpc")
            if not offered:
                raise SetupError(f"The card of {card.name!r} has no address to connect to.")
            address = cards.address_of(offered[0][0])
        gate = Gate(replace(policy or Policy(), total_timeout=timeout).registering(address))
        try:
            if card is None:
                found = await find_card(gate, address, secret, header)
            else:
                document = dict(agent) if isinstance(agent, Mapping) else cards.document(card)
                found = FoundCard(url=address, document=document, card=card)
        except BaseException:
            await gate.aclose()
            raise
        peer = Peer(
            found,
            gate,
            Credential(found.card, secret, header, gate, found.url),
            extensions=EXTENSIONS | {SEARCH, *extensions},
        )
        return cls(peer, timeout)

    @property
    def card(self) -> AgentCard:
        """The card of the agent."""
        return self._peer.card

    @property
    def spoken(self) -> Interface | None:
        """The interface (address, binding, generation) that took the last message; None before the first."""
        return self._peer.interface

    async def send(
        self, said: Said, *, task: str | None = None, context: str | None = None, wait: bool = True, **more: Any
    ) -> Reply:
        """Send a message; the task that comes of it, or a plain message. With ``wait``, once the task has settled.

        ``task`` answers what a task asked. ``more`` are ``skill``, ``metadata``, ``history_length``, ``output_modes``
        and ``push``, a push notification configuration. An agent that does not block is polled.
        """
        reply = await self._peer.send(_build_send(said, task, context, wait, **more), self._options)
        assert isinstance(reply, (Task, Message))
        if not wait or isinstance(reply, Message) or reply.status.state not in (State.SUBMITTED, State.WORKING):
            return reply
        async with aclosing(self._peer.poll(reply.id, self._options)) as tasks:
            async for current in tasks:
                reply = current
        return reply

    async def stream(
        self, said: Said, *, task: str | None = None, context: str | None = None, **more: Any
    ) -> AsyncGenerator[Item, None]:
        """Send a message; everything that happens until its task settles. Broken streams are resumed.

        A Task among the items is a snapshot that replaces all items before it. Of an agent that does not stream the
        one item is its task.
        """
        request = _build_send(said, task, context, True, stream=self._peer.streams, **more)
        if not self._peer.streams:
            yield await self.send(said, task=task, context=context, **more)
            return
        async with aclosing(self._peer.follow(request, self._options)) as items:
            async for item in items:
                yield item

    async def subscribe(self, task: str) -> AsyncGenerator[Item, None]:
        """Everything that happens to a running task until it settles."""
        async with aclosing(self._peer.follow(Subscribe(id=task), self._options)) as items:
            async for item in items:
                yield item

    async def get(self, task: str, history_length: int | None = None) -> Task:
        """A task as it stands."""
        return await self._ask(GetTask(id=task, history_length=history_length), Task)

    async def list(self, **filters: Any) -> TaskPage:
        """Our tasks at the agent: ``context_id``, ``status``, ``page_size``, ``page_token`` and the like choose."""
        return await self._ask(ListTasks(**filters), TaskPage)

    async def search(self, query: str, page_size: int | None = None) -> TaskPage:
        """Our tasks that contain these words, at an agent that declares ``tasks/search``."""
        return await self._ask(Search(query=query, page_size=page_size), TaskPage)

    async def cancel(self, task: str) -> Task:
        """Stop a task."""
        return await self._ask(CancelTask(id=task), Task)

    async def set_push(self, task: str, push: Push) -> Push:
        """Add a push notification configuration to a task."""
        return await self._ask(CreatePush(task_id=task, config=push), Push)

    async def get_push(self, task: str, config: str | None = None) -> Push:
        """One push configuration of a task; without an id its first. JobNotFound if there is none."""
        try:
            return await self._ask(GetPush(task_id=task, id=config), Push)
        except ValidationError:
            if config is not None:
                raise
        # Since 1.0 a configuration can only be read by its id.
        found = await self.list_push(task)
        if not found.configs:
            raise JobNotFound(f"Task {task[:100]} has no push configuration.")
        return found.configs[0]

    async def list_push(self, task: str) -> PushPage:
        """All push configurations of a task."""
        return await self._ask(ListPush(task_id=task), PushPage)

    async def delete_push(self, task: str, config: str) -> None:
        """Remove a push notification configuration."""
        await self._peer.send(DeletePush(task_id=task, id=config), self._options)

    async def extended_card(self) -> AgentCard:
        """The card that the agent shows to our credential."""
        return AgentCard.from_wire(await self._ask(GetCard(), dict))

    async def signature(self) -> dict[str, Any]:
        """Whether the card is signed: ``status`` is unsigned, verified, unverified or invalid, and which keys."""
        return await check_signature(self._peer.gate, self._peer.found)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._peer.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.aclose()

    async def _ask(self, request: Request, kind: type[V]) -> V:
        value = await self._peer.send(request, self._options)
        assert isinstance(value, kind)
        return value


class SyncA2AClient:
    """``A2AClient`` for synchronous code: the same methods, from any thread.

    Made by ``connect``; close it, or use ``with``.
    """

    def __init__(self, client: A2AClient):
        if not isinstance(client, A2AClient):
            raise SetupError("Create a SyncA2AClient with connect: client = SyncA2AClient.connect(address).")
        self._client = client

    @classmethod
    def connect(
        cls, agent: str | AgentCard | Mapping[str, Any], credential: str | Secret | None = None, **options: Any
    ) -> Self:
        """A client of an agent."""
        return cls(bridge.run(A2AClient.connect(agent, credential, **options)))

    @property
    def card(self) -> AgentCard:
        """The card of the agent."""
        return self._client.card

    @property
    def spoken(self) -> Interface | None:
        """The interface (address, binding, generation) that took the last message; None before the first."""
        return self._client.spoken

    def send(self, said: Said, **options: Any) -> Reply:
        """Send a message; the task that comes of it, or a plain message."""
        return bridge.run(self._client.send(said, **options))

    def stream(self, said: Said, **options: Any) -> Iterator[Item]:
        """Send a message; everything that happens until its task settles."""
        return bridge.iterate(self._client.stream(said, **options))

    def subscribe(self, task: str) -> Iterator[Item]:
        """Everything that happens to a running task until it settles."""
        return bridge.iterate(self._client.subscribe(task))

    def get(self, task: str, history_length: int | None = None) -> Task:
        """A task as it stands."""
        return bridge.run(self._client.get(task, history_length))

    def list(self, **filters: Any) -> TaskPage:
        """Our tasks at the agent."""
        return bridge.run(self._client.list(**filters))

    def search(self, query: str, page_size: int | None = None) -> TaskPage:
        """Our tasks that contain these words, at an agent that declares ``tasks/search``."""
        return bridge.run(self._client.search(query, page_size))

    def cancel(self, task: str) -> Task:
        """Stop a task."""
        return bridge.run(self._client.cancel(task))

    def set_push(self, task: str, push: Push) -> Push:
        """Add a push notification configuration to a task."""
        return bridge.run(self._client.set_push(task, push))

    def get_push(self, task: str, config: str | None = None) -> Push:
        """One push configuration of a task; without an id its first."""
        return bridge.run(self._client.get_push(task, config))

    def list_push(self, task: str) -> PushPage:
        """All push configurations of a task."""
        return bridge.run(self._client.list_push(task))

    def delete_push(self, task: str, config: str) -> None:
        """Remove a push notification configuration."""
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


def _build_send(
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
    if isinstance(said, Message):
        message = said
    else:
        parts: tuple[Part, ...]
        if isinstance(said, str):
            parts = (Part(text=said),)
        else:
            parts = (Part(data=dict(said)),) if isinstance(said, Mapping) else tuple(said)
        message = Message(
            message_id=REAL.id(),
            role=Role.USER,
            parts=parts,
            task_id=task,
            context_id=context,
            metadata={**(metadata or {}), **({"skillId": skill} if skill else {})} or None,
        )
    configuration = Sending(
        accepted_output_modes=tuple(output_modes),
        return_immediately=not wait,
        history_length=history_length,
        push=push,
    )
    return Send(message=message, configuration=configuration, stream=stream)
