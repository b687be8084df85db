"""Runs what a server offers beside tools: reads resources, fills prompts, proposes values for arguments.

Each is a call through all steps, as that of a tool is. Listing is safe from any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import msgspec
from msgspec.structs import replace

from agent3.calls.outcomes import error_of
from agent3.errors import NotFound
from agent3.model import LOCAL, Answer, Done, Failed, Outcome, Part, Principal, value_of
from agent3.protocols.mcp.door.toolset import Completion, CompletionResult, Prompt, Resource, ResourceTemplate
from agent3.protocols.mcp.library.catalogue import Version
from agent3.protocols.mcp.library.offers import ResourceOffer, list_choices, read_arguments
from agent3.protocols.mcp.library.rendering import restore_part
from agent3.protocols.mcp.library.tool_runner import CallOptions, ToolRunner

__all__ = ["OfferRunner"]


class OfferRunner:
    """The resources and prompts of one server, for a caller."""

    def __init__(self, runner: ToolRunner):
        self._runner = runner
        self._offers = runner.offers

    # Resources

    def list_resources(self, principal: Principal = LOCAL) -> list[Resource]:
        """The resources that a caller may read, in the order of their registration."""
        return [offer.shown for offer in self._resources(principal) if isinstance(offer.shown, Resource)]

    def list_templates(self, principal: Principal = LOCAL) -> list[ResourceTemplate]:
        """The families of resources that a caller may read, likewise."""
        return [offer.shown for offer in self._resources(principal) if isinstance(offer.shown, ResourceTemplate)]

    def find_resource(self, uri: str, principal: Principal) -> tuple[ResourceOffer, dict[str, str]]:
        """What is at an address. A caller cannot tell what it may not read from what does not exist."""
        found = self._offers.find_resource(uri)
        if found is None or not self._runner.visible(principal, found[0].version):
            raise self._offers.unknown_resource_error(uri)
        return found

    async def read(
        self,
        uri: str,
        principal: Principal = LOCAL,
        *,
        resumed: tuple[str, Mapping[str, Answer]] | None = None,
        **options: Unpack[CallOptions],
    ) -> Outcome:
        """The contents of a resource. NotFound is raised; other refusals are outcomes.

        ``resumed`` is the job of an earlier read that asked something, and the answers to it.
        """
        try:
            offer, values = self.find_resource(uri, principal)
        except NotFound as refusal:
            await self._refuse("resource", principal, refusal, options)
            raise
        outcome = await self._run(offer.version, read_arguments(offer.schema, values), principal, resumed, options)
        if not isinstance(outcome, Done):
            return outcome
        parts = [_with_media_type(part, offer.shown.media_type) for part in outcome.parts]
        return replace(outcome, parts=tuple(parts))

    def _resources(self, principal: Principal) -> list[ResourceOffer]:
        return [offer for offer in self._offers.resources() if self._runner.visible(principal, offer.version)]

    # Prompts

    def list_prompts(self, principal: Principal = LOCAL) -> list[Prompt]:
        """The prompts that a caller has, in the order of their registration."""
        return [offer.shown for offer in self._offers.prompts() if self._runner.visible(principal, offer.version)]

    async def fill(
        self,
        name: str,
        arguments: Mapping[str, str],
        principal: Principal = LOCAL,
        *,
        resumed: tuple[str, Mapping[str, Answer]] | None = None,
        **options: Unpack[CallOptions],
    ) -> Outcome:
        """A prompt filled in, as parts. NotFound is raised; other refusals are outcomes."""
        offer = self._offers.find_prompt(name)
        if offer is None or not self._runner.visible(principal, offer.version):
            refusal = self._offers.unknown_prompt_error(name)
            await self._refuse("prompt", principal, refusal, options)
            raise refusal
        return await self._run(offer.version, read_arguments(offer.schema, arguments), principal, resumed, options)

    # Proposals

    async def complete(
        self, completion: Completion, principal: Principal = LOCAL, *, door: str = "library"
    ) -> Sequence[str] | CompletionResult:
        """Values for an argument: of its own function, else those that its type allows. Failures are raised."""
        offer = self._offers.find_offer(completion)
        if offer is None or not self._runner.visible(principal, offer.version):
            is_prompt = completion.kind == "prompt"
            unknown = self._offers.unknown_prompt_error if is_prompt else self._offers.unknown_resource_error
            raise unknown(completion.name)
        version = self._offers.find_completion(offer, completion.argument)
        if version is None:
            return list_choices(offer.schema.get(completion.argument) or {}, completion.value)
        given: dict[str, Any] = {"value": completion.value}
        if "given" in (version.definition.to_schema().get("properties") or {}):
            given["given"] = dict(completion.given)
        outcome = await self._runner.call_offer(version, given, principal, door=door)
        if isinstance(outcome, Failed):
            raise error_of(outcome)
        value = value_of(outcome.parts) if isinstance(outcome, Done) else None
        try:
            if isinstance(value, dict):
                return msgspec.convert(value, CompletionResult)
            return msgspec.convert([] if value is None else value, list[str])
        except msgspec.ValidationError as error:
            failed = Failed("target_failed", f"{version.name} must return a list of texts: {error}")
            raise error_of(failed) from None

    async def _refuse(self, kind: str, principal: Principal, refusal: NotFound, options: CallOptions) -> None:
        traceparent, door = options.get("traceparent"), options.get("door", "library")
        await self._runner.refuse(kind, principal, refusal, traceparent, door)

    async def _run(
        self,
        version: Version,
        given: dict[str, Any],
        principal: Principal,
        resumed: tuple[str, Mapping[str, Answer]] | None,
        options: CallOptions,
    ) -> Outcome:
        """A first turn, or the next one of a job; large parts come back whole."""
        if resumed is None:
            outcome = await self._runner.call_offer(version, given, principal, **options)
        else:
            job, answers = resumed
            outcome = await self._runner.answer(
                job, answers, principal, options.get("listener"), door=options.get("door", "library")
            )
        if not isinstance(outcome, Done) or all(part.artifact is None for part in outcome.parts):
            return outcome
        parts = []
        for part in outcome.parts:
            if part.artifact is not None:
                part = restore_part(part, *await self._runner.artifact(part.artifact, principal))
            parts.append(part)
        return replace(outcome, parts=tuple(parts))


def _with_media_type(part: Part, declared: str | None) -> Part:
    """A part of a resource with the type that its author declared, else one that it certainly has."""
    if declared is not None:
        return replace(part, media_type=declared)
    if part.media_type is None and part.text is not None:
        return replace(part, media_type="text/plain")
    return part
