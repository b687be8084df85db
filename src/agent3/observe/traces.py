"""W3C trace context, and spans for those who want them.

``TraceContext`` reads and writes the headers by the letter of the specification. ``Tracer`` is the port behind which
spans go somewhere: nowhere by default, to OpenTelemetry with the extra ``otel``. It knows nothing of calls or HTTP:
the doors bring the headers and take them away.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeAlias

from msgspec import Struct

from agent3.env import Env
from agent3.errors import MissingExtra
from agent3.observe import logs

__all__ = ["NO_TRACER", "Attributes", "NoTracer", "Span", "TraceContext", "Tracer", "here", "new", "otel", "parse"]

Attributes: TypeAlias = Mapping[str, str | int | float | bool]

_SAMPLED = 0x01
_KNOWN_FLAGS = 0x03  # sampled, and level 2's promise that the id is random; unknown bits must not be passed on
_LONGEST_STATE = 512
_LONGEST_MEMBER = 128
_MOST_MEMBERS = 32

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII | re.DOTALL)
_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
_MEMBER = re.compile(
    r"(?P<key>[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)


class TraceContext(Struct, frozen=True):
    """Where in which trace we are: the trace, the span, whether it is recorded, and what vendors put beside it.

    ``fresh`` says that it began here: no span of these ids exists yet, so the first one started takes them as its own.
    """

    trace_id: str
    span_id: str
    flags: int = _SAMPLED
    state: str = ""
    fresh: bool = False

    @property
    def sampled(self) -> bool:
        """Whether the caller records this trace."""
        return bool(self.flags & _SAMPLED)

    def header(self) -> str:
        """The ``traceparent`` to send on. ``state``, where it is not empty, goes as ``tracestate``."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    def child(self, env: Env) -> TraceContext:
        """The same trace, with a span id of its own."""
        return TraceContext(self.trace_id, _span_id(env), self.flags, self.state)


def new(env: Env, trace_id: str | None = None) -> TraceContext:
    """Begin a trace; ``trace_id`` lends it an id that exists already, in 32 lower-case hexadecimal digits."""
    if trace_id is None:
        trace_id = env.id()
    elif _TRACE_ID.fullmatch(trace_id) is None:
        raise ValueError(f"{trace_id!r} is no trace id: give 32 lower-case hexadecimal digits, not all zero")
    return TraceContext(trace_id, _span_id(env), fresh=True)


def parse(traceparent: str | None, tracestate: str | None = None) -> TraceContext | None:
    """The context that came with a request, or None if there is none that the specification lets us use.

    A version after 00 is read as far as 00 goes. A broken ``tracestate`` is dropped and costs nothing else.
    """
    if traceparent is None:
        return None
    found = _PARENT.fullmatch(traceparent.strip(" \t"))
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    known = _KNOWN_FLAGS if version == "00" else _SAMPLED
    return TraceContext(trace_id, span_id, int(flags, 16) & known, _state(tracestate))


here: ContextVar[TraceContext | None] = ContextVar("agent3_span", default=None)
"""The span inside which this code runs, for whoever sends something on; None where no tracer is at work."""


def _span_id(env: Env) -> str:
    # A span id must not be all zero; one in 2^64 is.
    return env.random_bytes(8).hex().replace("0" * 16, "0" * 15 + "1")


def _state(tracestate: str | None) -> str:
    """What of a ``tracestate`` may be passed on: all of it, nothing if it is broken, less if it is too long."""
    members = [one.strip(" \t") for one in (tracestate or "").split(",", 4 * _MOST_MEMBERS)]
    found = [_MEMBER.fullmatch(one) for one in members if one]
    keys = {one["key"] for one in found if one}
    if len(keys) != len(found) or len(found) > _MOST_MEMBERS:
        return ""
    return _shortened([one[0] for one in found if one])


def _shortened(members: list[str]) -> str:
    """Section 3.3.1.5: whole members only, those over 128 characters first, then from the end."""
    if len(",".join(members)) > _LONGEST_STATE:
        members = [one for one in members if len(one) <= _LONGEST_MEMBER]
    while len(",".join(members)) > _LONGEST_STATE:
        members.pop()
    return ",".join(members)


# Spans


class Span(Protocol):
    """Something that began and will end. ``context`` is what goes out with every request made inside it."""

    @property
    def context(self) -> TraceContext:
        """The ids of this span."""
        ...

    def end(self, status: str, attributes: Attributes | None = None) -> None:
        """It is over, ``failed`` or otherwise. Ending it twice does nothing more."""
        ...


class Tracer(Protocol):
    """Where spans go."""

    def start(self, name: str, context: TraceContext, attributes: Attributes | None = None) -> Span:
        """Begin a span below ``context``, or at its root if that is fresh. Never waits, never fails the caller."""
        ...

    def close(self) -> None:
        """Send what is left. May take seconds: not for the event loop."""
        ...


class _Passing(Struct, frozen=True):
    """A span that nobody records: the context passes through untouched, as the specification allows."""

    context: TraceContext

    def end(self, status: str, attributes: Attributes | None = None) -> None:
        """Nothing to do."""


class NoTracer:
    """Spans go nowhere; the trace still goes through."""

    def start(self, name: str, context: TraceContext, attributes: Attributes | None = None) -> Span:
        """A span that only carries the context on."""
        return _Passing(context)

    def close(self) -> None:
        """Nothing is left to send."""


NO_TRACER: Final = NoTracer()


# OpenTelemetry, the extra


def otel(processor: Any = None) -> Tracer:
    """Spans to OpenTelemetry, over OTLP/HTTP as the standard ``OTEL_*`` variables say, or to your ``SpanProcessor``.

    With ``OTEL_SDK_DISABLED=true`` or ``OTEL_TRACES_EXPORTER=none`` they go nowhere. Raises MissingExtra where the
    extra ``otel`` is not installed. The collector is the operator's own choice and is reached past the outbound gate.
    """
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    if off and processor is None:
        return NO_TRACER
    try:
        return _Otel(_provider(processor if processor is not None else _exporter()))
    except ImportError as error:
        raise MissingExtra("OpenTelemetry tracing", "otel") from error


def _exporter() -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return BatchSpanProcessor(OTLPSpanExporter())


def _provider(processor: Any) -> Any:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    resource = Resource.create()
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "agent3"}))
    # Its own exit hook would outlive us: ``close`` is the one way to end it.
    provider = TracerProvider(resource=resource, id_generator=_borrowed_ids(), shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return provider


_lent: ContextVar[TraceContext | None] = ContextVar("agent3_lent_ids", default=None)


def _borrowed_ids() -> Any:
    """An id generator by which a trace that begins here keeps the ids that our ledger and logs already name."""
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class BorrowedIds(RandomIdGenerator):  # type: ignore[misc, unused-ignore]
        def generate_trace_id(self) -> int:
            lent = _lent.get()
            return int(lent.trace_id, 16) if lent else int(super().generate_trace_id())

        def generate_span_id(self) -> int:
            lent = _lent.get()
            return int(lent.span_id, 16) if lent else int(super().generate_span_id())

    return BorrowedIds()


class _Otel:
    """The port, on an OpenTelemetry ``TracerProvider``."""

    def __init__(self, provider: Any):
        from opentelemetry import context, trace

        self._api = trace
        self._nowhere = context.Context()
        self._provider = provider
        self._tracer = provider.get_tracer("agent3")

    def start(self, name: str, context: TraceContext, attributes: Attributes | None = None) -> Span:
        """Begin a span below the one that the context names, or with its very ids if the trace began here."""
        clean = _clean(attributes)
        if not context.fresh:
            return self._span(self._tracer.start_span(name, self._parent(context), attributes=clean), context)
        token = _lent.set(context)
        try:
            return self._span(self._tracer.start_span(name, self._nowhere, attributes=clean), context)
        finally:
            _lent.reset(token)

    def close(self) -> None:
        """Send what is left and stop the exporter."""
        self._provider.shutdown()

    def _parent(self, context: TraceContext) -> Any:
        parent = self._api.SpanContext(
            int(context.trace_id, 16),
            int(context.span_id, 16),
            is_remote=True,
            trace_flags=self._api.TraceFlags(context.flags),
            trace_state=self._api.TraceState.from_header([context.state]) if context.state else None,
        )
        return self._api.set_span_in_context(self._api.NonRecordingSpan(parent), self._nowhere)

    def _span(self, span: Any, parent: TraceContext) -> Span:
        ids = span.get_span_context()
        flags = int(ids.trace_flags) & _KNOWN_FLAGS
        own = TraceContext(f"{ids.trace_id:032x}", f"{ids.span_id:016x}", flags, parent.state)
        return _OtelSpan(span, own, self._api.StatusCode.ERROR)


class _OtelSpan:
    __slots__ = ("_error", "_span", "context")

    def __init__(self, span: Any, context: TraceContext, error: Any):
        self._span = span
        self._error = error
        self.context = context

    def end(self, status: str, attributes: Attributes | None = None) -> None:
        if not self._span.is_recording():
            return
        self._span.set_attributes({"agent3.status": status, **_clean(attributes)})
        if status == "failed":
            self._span.set_status(self._error, str((attributes or {}).get("code", "")) or None)
        self._span.end()


def _clean(attributes: Attributes | None) -> dict[str, str | int | float | bool]:
    """A trace leaves the house, so what goes for a line of the log goes for an attribute."""
    return {key: logs.scrub(one) if isinstance(one, str) else one for key, one in (attributes or {}).items()}
