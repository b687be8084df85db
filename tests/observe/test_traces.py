from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from agent3.env import REAL, SeededEnv
from agent3.errors import MissingExtra
from agent3.observe import traces
from agent3.observe.traces import NO_TRACER, TraceContext, Tracer

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
HEADER = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("header", "flags"),
    [
        (HEADER, 0x01),
        (f"00-{TRACE}-{SPAN}-00", 0x00),
        (f"00-{TRACE}-{SPAN}-03", 0x03),
        (f"00-{TRACE}-{SPAN}-ff", 0x03),
        (f" {HEADER}\t", 0x01),
        (f"01-{TRACE}-{SPAN}-01", 0x01),
        (f"cc-{TRACE}-{SPAN}-03", 0x01),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", 0x01),
        (f"cc-{TRACE}-{SPAN}-01-", 0x01),
    ],
)
def test_a_header_that_the_specification_allows_is_read(header: str, flags: int) -> None:
    assert traces.parse(header) == TraceContext(TRACE, SPAN, flags)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "-",
        TRACE,
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN.upper()}-01",
        f"0A-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0X",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-",
        f"00-{TRACE}-{SPAN}-01-extra",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}0-{SPAN}-01",
        f"00-{TRACE}-{SPAN[1:]}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"000-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01.what-the-future-will-not-be-like",
        f"cc-{TRACE}-{SPAN}-011",
        f"00_{TRACE}_{SPAN}_01",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        f"00-{TRACE[:-1]}\u0661-{SPAN}-01",
        f"{HEADER}\n",
        f"{HEADER},{HEADER}",
    ],
)
def test_a_header_that_the_specification_refuses_is_none(header: str | None) -> None:
    assert traces.parse(header) is None


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        (None, ""),
        ("", ""),
        ("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        (" a=1 , ,\tb=2 ", "a=1,b=2"),
        ("1tenant@vendor=x", "1tenant@vendor=x"),
        ("a=has space", "a=has space"),
        ("A=1", ""),
        ("a=1,a=2", ""),
        ("a=", ""),
        ("a=1=2", ""),
        ("novalue", ""),
        ("a=1,b=\x00", ""),
        (",".join(f"k{number}=1" for number in range(32)), ",".join(f"k{number}=1" for number in range(32))),
        (",".join(f"k{number}=1" for number in range(33)), ""),
        ("a=1," + "b=" + "x" * 200 + "," + "c=" + "y" * 250 + "," + "d=" + "z" * 100, "a=1,d=" + "z" * 100),
        (",".join(f"k{number}=" + "x" * 97 for number in range(9)), ",".join(f"k{n}=" + "x" * 97 for n in range(5))),
        ("a=1" + "," * 1_000_000, ""),
    ],
)
def test_a_tracestate_is_passed_on_bounded_or_not_at_all(state: str | None, kept: str) -> None:
    context = traces.parse(HEADER, state)
    assert context is not None
    assert context.state == kept
    assert len(context.state) <= 512


def test_what_is_read_is_written_the_same() -> None:
    context = traces.parse(HEADER)
    assert context is not None
    assert context.header() == HEADER
    assert context.sampled


def test_a_child_stays_in_the_trace_and_has_a_span_of_its_own() -> None:
    parent = TraceContext(TRACE, SPAN, 0, "a=1")
    child = parent.child(REAL)
    assert (child.trace_id, child.flags, child.state) == (TRACE, 0, "a=1")
    assert child.span_id != SPAN
    assert traces.parse(child.header()) is not None
    assert not child.sampled


def test_a_new_trace_takes_a_lent_id_and_repeats_with_its_seed() -> None:
    lent = REAL.id()
    assert traces.new(REAL, lent).trace_id == lent
    assert traces.new(SeededEnv(seed=3)) == traces.new(SeededEnv(seed=3))
    assert traces.parse(traces.new(REAL).header()) is not None


@pytest.mark.parametrize("wrong", ["", "0" * 32, TRACE.upper(), TRACE[1:], "call-1"])
def test_a_lent_id_that_is_none_is_refused_by_name(wrong: str) -> None:
    with pytest.raises(ValueError, match="is not a trace id"):
        traces.new(REAL, wrong)


def test_a_span_id_is_never_all_zero() -> None:
    class Zeros(SeededEnv):
        def random_bytes(self, count: int) -> bytes:
            return bytes(count)

    assert traces.new(Zeros(), TRACE).span_id == "0000000000000001"


def test_without_a_tracer_the_context_passes_through_untouched() -> None:
    context = TraceContext(TRACE, SPAN, 1, "a=1")
    span = NO_TRACER.start("call", context, {"agent": "x"})
    span.end("failed", {"code": "timeout"})
    NO_TRACER.close()
    assert span.context is context


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> Iterator[Tracer]:
    tracer = traces.otel(SimpleSpanProcessor(exporter))
    yield tracer
    tracer.close()


def test_a_span_hangs_below_the_incoming_header(exporter: InMemorySpanExporter, tracer: Tracer) -> None:
    incoming = traces.parse(HEADER, "vendor=1")
    assert incoming is not None
    call = tracer.start("call", incoming, {"agent": "pizza", "attempts": 2})
    attempt = tracer.start("attempt", call.context)
    attempt.end("done")
    call.end("done", {"cost": 0.5})
    inner, outer = exporter.get_finished_spans()
    assert (outer.name, inner.name) == ("call", "attempt")
    assert outer.parent is not None
    assert inner.parent is not None
    assert outer.context is not None
    assert inner.context is not None
    assert f"{outer.parent.span_id:016x}" == SPAN
    assert outer.parent.is_remote
    assert f"{outer.context.trace_id:032x}" == f"{inner.context.trace_id:032x}" == TRACE
    assert inner.parent.span_id == outer.context.span_id == int(call.context.span_id, 16)
    assert dict(outer.attributes or {}) == {"agent": "pizza", "attempts": 2, "agent3.status": "done", "cost": 0.5}
    assert outer.status.status_code is StatusCode.UNSET
    assert outer.resource.attributes["service.name"] == "agent3"
    assert attempt.context.header() == f"00-{TRACE}-{attempt.context.span_id}-01"
    assert attempt.context.state == "vendor=1"


def test_a_trace_that_begins_here_keeps_our_ids_and_has_no_parent(
    exporter: InMemorySpanExporter, tracer: Tracer
) -> None:
    begun = traces.new(REAL, REAL.id())
    root = tracer.start("call", begun)
    other = tracer.start("unrelated", traces.new(REAL))
    other.end("done")
    root.end("done")
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert spans["call"].parent is None
    assert spans["call"].context is not None
    assert f"{spans['call'].context.trace_id:032x}" == begun.trace_id == root.context.trace_id
    assert f"{spans['call'].context.span_id:016x}" == begun.span_id == root.context.span_id
    assert other.context.trace_id != begun.trace_id
    assert not root.context.fresh


def test_a_failed_span_says_so_and_why(exporter: InMemorySpanExporter, tracer: Tracer) -> None:
    span = tracer.start("call", traces.new(REAL))
    span.end("failed", {"code": "timeout"})
    span.end("done")
    [seen] = exporter.get_finished_spans()
    assert seen.status.status_code is StatusCode.ERROR
    assert seen.status.description == "timeout"


def test_a_caller_who_does_not_record_is_not_recorded(exporter: InMemorySpanExporter, tracer: Tracer) -> None:
    incoming = traces.parse(f"00-{TRACE}-{SPAN}-00")
    assert incoming is not None
    span = tracer.start("call", incoming)
    span.end("done")
    assert exporter.get_finished_spans() == ()
    assert span.context.trace_id == TRACE
    assert not span.context.sampled


def test_no_secret_leaves_in_an_attribute(exporter: InMemorySpanExporter, tracer: Tracer) -> None:
    tracer.start("call", traces.new(REAL), {"url": "https://u:s3cr3t@host/?token=s3cr3t"}).end(
        "failed", {"detail": "Authorization: Bearer s3cr3t-value"}
    )
    [seen] = exporter.get_finished_spans()
    assert "s3cr3t" not in str(dict(seen.attributes or {}))


def test_the_standard_variables_name_the_service_and_turn_it_off(
    monkeypatch: pytest.MonkeyPatch, exporter: InMemorySpanExporter
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-gateway")
    tracer = traces.otel(SimpleSpanProcessor(exporter))
    tracer.start("call", traces.new(REAL)).end("done")
    tracer.close()
    assert exporter.get_finished_spans()[0].resource.attributes["service.name"] == "my-gateway"
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert traces.otel() is NO_TRACER
    monkeypatch.delenv("OTEL_SDK_DISABLED")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert traces.otel() is NO_TRACER


def test_the_standard_variables_name_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    with _collector() as (address, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=pizza")
        tracer = traces.otel()
        context = traces.new(REAL)
        tracer.start("call", context).end("done")
        tracer.close()
        path, team, body = received.get(timeout=240)
    assert (path, team) == ("/v1/traces", "pizza")
    assert bytes.fromhex(context.trace_id) in body


@contextmanager
def _collector() -> Iterator[tuple[str, queue.Queue[tuple[str, str | None, bytes]]]]:
    received: queue.Queue[tuple[str, str | None, bytes]] = queue.Queue()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.put((self.path, self.headers["x-team"], body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()
        thread.join(timeout=240)


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with pytest.raises(MissingExtra, match=r"pip install 'agent3\[otel\]'"):
        traces.otel()
