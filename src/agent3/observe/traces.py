"""W3C trace context, and optional spans.

``TraceContext`` reads and writes the headers strictly by the specification. ``Tracer`` is the port for spans: they go
nowhere by default, to OpenTelemetry with the extra ``otel``. It knows nothing of calls or HTTP: callers read and write
the headers.
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
_KNOWN_FLAGS = 0x03  # sampled, and that the id is random (level 2); unknown bits must not be passed on
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
    """A place in a trace: the trace, the span, whether it is recorded, and the vendors' ``tracestate``.

    ``fresh`` means that the trace began here: no span has these ids yet, so the first one started takes them.
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
        """The ``traceparent`` header to send on. ``state``, unless empty, goes into ``tracestate``."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    def child(self, env: Env) -> TraceContext:
        """The same trace, with a span id of its own."""
        return TraceContext(self.trace_id, _span_id(env), self.flags, self.state)


def new(env: Env, trace_id: str | None = None) -> TraceContext:
    """Begin a trace, with a given ``trace_id`` of 32 lower-case hexadecimal digits or a new one."""
    if trace_id is None:
        trace_id = env.id()
    elif _TRACE_ID.fullmatch(trace_id) is None:
        raise ValueError(f"{trace_id!r} is not a trace id: use 32 lower-case hexadecimal digits, not all zero")
    return TraceContext(trace_id, _span_id(env), fresh=True)


def parse(traceparent: str | None, tracestate: str | None = None) -> TraceContext | None:
    """The context of a request's headers, or None if they hold none that the specification lets us use.

    A version after 00 is read as far as 00 goes. An invalid ``tracestate`` is dropped, and only that.
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
    return TraceContext(trace_id, span_id, int(flags, 16) & known, _parse_state(tracestate) if tracestate else "")


here: ContextVar[TraceContext | None] = ContextVar("agent3_span", default=None)
"""The span inside which this code runs, to be sent on with requests; None where no tracer is in use."""


def _span_id(env: Env) -> str:
    # A span id must not be all zero; one in 2^64 is.
    return env.random_bytes(8).hex().replace("0" * 16, "0" * 15 + "1")


def _parse_state(tracestate: str | None) -> str:
    """What of a ``tracestate`` may be passed on: nothing if it is invalid, less if it is too long."""
    members = [member.strip(" \t") for member in (tracestate or "").split(",", 4 * _MOST_MEMBERS)]
    found = [_MEMBER.fullmatch(member) for member in members if member]
    keys = {match["key"] for match in found if match}
    if len(keys) != len(found) or len(found) > _MOST_MEMBERS:
        return ""
    kept = [match[0] for match in found if match]
    # Section 3.3.1.5: remove whole members only, first those over 128 characters, then from the end.
    if len(",".join(kept)) > _LONGEST_STATE:
        kept = [member for member in kept if len(member) <= _LONGEST_MEMBER]
    while len(",".join(kept)) > _LONGEST_STATE:
        kept.pop()
    return ",".join(kept)


# --- spans ------------------------------------------------------------------------------------------------------------


class Span(Protocol):
    """An operation that began and will end. ``context`` goes out with every request made inside it."""

    @property
    def context(self) -> TraceContext:
        """The ids of this span."""
        ...

    def end(self, status: str, attributes: Attributes | None = None) -> None:
        """End the span; ``failed`` marks it as an error. Ending it twice has no further effect."""
        ...


class Tracer(Protocol):
    """The port for spans."""

    def start(self, name: str, context: TraceContext, attributes: Attributes | None = None) -> Span:
        """Begin a span below ``context``, or the root span if that is fresh. Never waits, never raises."""
        ...

    def close(self) -> None:
        """Send what is left. May take seconds: do not call it on the event loop."""
        ...


class _UnrecordedSpan(Struct, frozen=True):
    """A span that is not recorded: the context passes through untouched, as the specification allows."""

    context: TraceContext

    def end(self, status: str, attributes: Attributes | None = None) -> None:
        """Nothing to do."""


class NoTracer:
    """Records no spans; the trace context still passes through."""

    def start(self, name: str, context: TraceContext, attributes: Attributes | None = None) -> Span:
        """A span that only passes the context on."""
        return _UnrecordedSpan(context)

    def close(self) -> None:
        """Nothing is left to send."""


NO_TRACER: Final = NoTracer()


# --- OpenTelemetry, an extra ------------------------------------------------------------------------------------------


def otel(processor: Any = None) -> Tracer:
    """Spans to OpenTelemetry, over OTLP/HTTP as the standard ``OTEL_*`` variables say, or to your ``SpanProcessor``.

    With ``OTEL_SDK_DISABLED=true`` or ``OTEL_TRACES_EXPORTER=none`` they go nowhere. Raises MissingExtra if the extra
    ``otel`` is not installed. The collector is the operator's own choice and is not reached through the outbound gate.
    """
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    if off and processor is None:
        return NO_TRACER
    try:
        if processor is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            processor = BatchSpanProcessor(OTLPSpanExporter())
        return _OtelTracer(_provider(processor))
    except ImportError as error:
        raise MissingExtra("OpenTelemetry tracing", "otel") from error


_given_ids: ContextVar[TraceContext | None] = ContextVar("agent3_given_ids", default=None)


def _provider(processor: Any) -> Any:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class GivenIds(RandomIdGenerator):  # type: ignore[misc, unused-ignore]
        """Gives a trace that begins here the ids that our ledger and logs already use for it."""

        def generate_trace_id(self) -> int:
            given = _given_ids.get()
            return int(given.trace_id, 16) if given else int(super().generate_trace_id())

        def generate_span_id(self) -> int:
            given = _given_ids.get()
            return int(given.span_id, 16) if given else int(super().generate_span_id())

    resource = Resource.create()
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "agent3"}))
    # Without the SDK's own exit hook, which would outlive us: ``close`` is the one way to end it.
    provider = TracerProvider(resource=resource, id_generator=GivenIds(), shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return provider


class _OtelTracer:
    """The port, on an OpenTelemetry ``TracerProvider``."""

    def __init__(self, provider: Any):
        from opentelemetry import context, trace

        self._api = trace
        self._no_context = context.Context()
        self._provider = provider
        self._tracer = provider.get_tracer("agent3")

    def start(self, name: str, context: TraceContext, attributes: Attributes | None = None) -> Span:
        """Begin a span below the one that the context names, or with its very ids if the trace began here."""
        clean = _clean(attributes)
        if context.fresh:
            token = _given_ids.set(context)
            try:
                span = self._tracer.start_span(name, self._no_context, attributes=clean)
            finally:
                _given_ids.reset(token)
        else:
            parent = self._api.SpanContext(
                int(context.trace_id, 16),
                int(context.span_id, 16),
                is_remote=True,
                trace_flags=self._api.TraceFlags(context.flags),
                trace_state=self._api.TraceState.from_header([context.state]) if context.state else None,
            )
            below = self._api.set_span_in_context(self._api.NonRecordingSpan(parent), self._no_context)
            span = self._tracer.start_span(name, below, attributes=clean)
        ids = span.get_span_context()
        flags = int(ids.trace_flags) & _KNOWN_FLAGS
        # The sampler may have decided otherwise than the caller, so the flags are the span's own.
        own = TraceContext(f"{ids.trace_id:032x}", f"{ids.span_id:016x}", flags, context.state)
        return _OtelSpan(span, own, self._api.StatusCode.ERROR)

    def close(self) -> None:
        """Send what is left and stop the exporter."""
        self._provider.shutdown()


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
    """Attributes without secrets: a trace leaves this process, like a line of the log."""
    return {key: logs.scrub(value) if isinstance(value, str) else value for key, value in (attributes or {}).items()}
