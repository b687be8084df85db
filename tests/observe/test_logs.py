from __future__ import annotations

import asyncio
import io
import json
import logging
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from agent3.errors import SetupError
from agent3.observe import logs

SECRET = 'hunter2-XyZ/§ "quoted"'


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """A configured JSON log that knows no secret yet; afterwards the process's logging is as it was."""
    root, house = logging.getLogger(), logging.getLogger("agent3")
    handlers, level, own = root.handlers[:], root.level, house.level
    monkeypatch.setattr(logs, "_secrets", logs._Secrets())
    out = io.StringIO()
    logs.configure("DEBUG", "json", out)
    yield out
    root.handlers[:] = handlers
    root.setLevel(level)
    house.setLevel(own)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_with_time_level_logger_and_fields(stream: io.StringIO) -> None:
    logs.get("calls").info("call %s ended", "c1", extra={"status": "done", "attempts": 2})
    [line] = lines(stream)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "agent3.calls",
        "message": "call c1 ended",
        "status": "done",
        "attempts": 2,
    }


def test_the_ids_of_a_call_are_on_its_lines_and_gone_afterwards(stream: io.StringIO) -> None:
    log = logs.get("calls")
    outer = logs.bind(job="j1", trace="t1")
    inner = logs.bind(call="c1", context="x1")
    log.info("inside")
    logs.reset(inner)
    log.info("between")
    logs.reset(outer)
    log.info("outside")
    ids = [{name: line[name] for name in logs.Ids._fields if name in line} for line in lines(stream)]
    assert ids == [{"call": "c1", "job": "j1", "context": "x1", "trace": "t1"}, {"job": "j1", "trace": "t1"}, {}]
    assert logs.current() == logs.Ids()


def test_tasks_do_not_see_each_others_ids(stream: io.StringIO) -> None:
    async def call(name: str, meet: asyncio.Barrier) -> None:
        logs.bind(call=name)
        await meet.wait()
        logs.get().info("said by %s", name)

    async def both() -> None:
        meet = asyncio.Barrier(2)
        async with asyncio.timeout(60):
            await asyncio.gather(call("one", meet), call("two", meet))

    asyncio.run(both())
    assert {(line["message"], line["call"]) for line in lines(stream)} == {
        ("said by one", "one"),
        ("said by two", "two"),
    }


@pytest.mark.parametrize(
    "key",
    [
        "authorization",
        "Authorization",
        "token",
        "access_token",
        "refreshToken",
        "tokens",
        "api_key",
        "X-Api-Key",
        "apikey",
        "password",
        "db_passwd",
        "secret",
        "client_secret",
        "cookie",
        "Set-Cookie",
        "signature",
        "private_key",
        "credentials",
        "auth",
        "session_id",
        "password_hash",
    ],
)
def test_the_value_of_a_key_that_looks_secret_is_never_shown(stream: io.StringIO, key: str) -> None:
    log = logs.get()
    log.info("fields", extra={"headers": {key: "s3cr3t-value", "nested": [{key: ["s3cr3t-value"]}]}})
    log.info("args %s", {key: "s3cr3t-value"})
    log.info("args %s", [{key: {"deep": "s3cr3t-value"}}])
    log.info(f"args %({key})s", {key: "s3cr3t-value"})  # noqa: G004 - the key is the case
    log.info({key: "s3cr3t-value"})
    assert "s3cr3t" not in stream.getvalue()
    assert stream.getvalue().count(logs.REDACTED) == 6


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer s3cr3t-value",
        "Authorization: Custom s3cr3t-value and s3cr3t-more",
        "sent with bearer s3cr3t-value",
        "Cookie: sid=s3cr3t-value; other=s3cr3t-more",
        "password=s3cr3t-value",
        "password = 's3cr3t value with s3cr3t words'",
        "url https://host/path?token=s3cr3t-value&x=1",
        "url https://host/path?x=1&key=s3cr3t-value",
        "postgresql://user:s3cr3t@p@host/db",
        '{"api_key": "s3cr3t-value"}',
        '"{\\"api_key\\": \\"s3cr3t value\\"}"',
        "{'token': b's3cr3t-value'}",
        "Settings(name='x', client_secret='s3cr3t-value')",
        "Settings(token=Token(value='s3cr3t-value'))",
        "secrets: ['s3cr3t-value', 's3cr3t-more']",
        "-----BEGIN RSA PRIVATE KEY-----\ns3cr3t\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\ns3cr3t",
        "jwt eyJs3cr3thead.s3cr3tbody.s3cr3tsign",
        "openai sk-s3cr3ts3cr3ts3cr3t",
        "github ghp_s3cr3ts3cr3ts3cr3t",
        "with Basic s3cr3tOnMzY3IzdA==",
    ],
)
def test_text_that_looks_like_a_secret_is_never_shown(stream: io.StringIO, text: str) -> None:
    log = logs.get()
    log.info(text)
    log.info("it says %s", text)
    log.info("field", extra={"detail": text, "more": [text]})
    try:
        raise RuntimeError(text)
    except RuntimeError:
        log.exception("failed")
    assert "s3cr3t" not in stream.getvalue()
    assert logs.REDACTED in stream.getvalue()


def test_a_known_secret_is_never_shown_in_any_of_its_spellings(stream: io.StringIO) -> None:
    logs.redact(SECRET)
    log = logs.get()
    log.info("plain %s", SECRET)
    log.info("quoted %s in json %s", f"https://host/{quote(SECRET, safe='')}", json.dumps(SECRET, ensure_ascii=False))
    log.info("field", extra={"note": f"before {SECRET} after", SECRET: 1})
    try:
        raise ValueError(SECRET)
    except ValueError:
        log.exception("with a stack", stack_info=True)
    assert "hunter2" not in stream.getvalue()


def test_a_secret_that_begins_with_another_leaves_no_tail(stream: io.StringIO) -> None:
    logs.redact("prefix-of-it")
    logs.redact("prefix-of-it-and-the-tail")
    logs.get().info("x prefix-of-it-and-the-tail y prefix-of-it z")
    assert lines(stream)[0]["message"] == "x [redacted] y [redacted] z"


def test_a_secret_across_the_cut_of_a_long_line_is_not_shown_in_part(stream: io.StringIO) -> None:
    logs.redact("verylongsecret" * 20)
    text = "x" * 8_100 + "verylongsecret" * 20
    logs.get().info(text)
    logs.get().info("-" * 65_400 + "verylongsecret" * 20)
    assert "verylong" not in stream.getvalue()
    assert all(len(line["message"]) <= 8_193 for line in lines(stream))


def test_only_the_last_thousand_secrets_are_kept_and_naming_one_again_keeps_it() -> None:
    known = logs._Secrets()
    known.add("the-one-named-again")
    for number in range(999):
        known.add(f"secret-number-{number}")
    known.add("the-one-named-again")
    known.add("one-more-secret")
    assert len(known._values) == 1_000
    assert "the-one-named-again" in known.forms
    assert "secret-number-0" not in known.forms
    assert "secret-number-1" in known.forms


def test_what_is_no_secret_stays_readable(stream: io.StringIO) -> None:
    plain = "used tokens=512 max_tokens: 4096 of https://example.com/a?b=c in basic setup; digest mismatch"
    logs.redact("abc")
    logs.get().info(plain, extra={"usage": {"tokens": 7}, "key": "idem-1", "status": "done"})
    [line] = lines(stream)
    assert line["message"] == plain
    assert (line["usage"], line["key"], line["status"]) == ({"tokens": 7}, "idem-1", "done")


def test_no_text_can_forge_or_break_a_line(stream: io.StringIO) -> None:
    evil = 'x\n{"level":"error"}\r\x1b[2J\u2028\u202e\ud800'
    token = logs.bind(context=evil)
    logs.get().info("said %s", evil, extra={"field": evil})
    logs.reset(token)
    out = io.StringIO()
    logs.configure("DEBUG", "text", out)
    token = logs.bind(call=evil)
    try:
        raise RuntimeError(evil)
    except RuntimeError:
        logs.get().exception("said %s", evil, extra={"field": evil})
    logs.reset(token)
    [line] = lines(stream)
    assert line["message"] == 'said x\\n{"level":"error"}\\r\\x1b[2J\\u2028\\u202e\\ud800'
    assert line["field"] == line["context"] == line["message"][5:]
    first, *rest = out.getvalue().splitlines()
    assert "ERROR" in first
    assert rest
    assert all(one.startswith("    | ") for one in rest)
    assert "\x1b" not in out.getvalue()


def test_readable_text_shows_fields_and_ids_in_one_line(stream: io.StringIO) -> None:
    out = io.StringIO()
    logs.configure("INFO", "text", out)
    token = logs.bind(call="c1")
    logs.get("calls").info("ended", extra={"status": "done", "why": "two words"})
    logs.reset(token)
    assert out.getvalue().endswith(' INFO    agent3.calls: ended status=done why="two words" call=c1\n')
    assert stream.getvalue() == ""


def test_configuring_again_changes_and_never_doubles(stream: io.StringIO) -> None:
    out = io.StringIO()
    for _ in range(3):
        logs.configure("WARNING", "json", out)
    logs.get().info("quiet")
    logs.get().warning("once")
    assert [line["message"] for line in lines(out)] == ["once"]


def test_stderr_is_the_place_even_when_it_is_replaced_later(
    stream: io.StringIO, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.configure("INFO", "json")
    later = io.StringIO()
    logs.get().info("first")
    monkeypatch.setattr("sys.stderr", later)
    logs.get().info("second")
    assert '"first"' in capsys.readouterr().err
    assert '"second"' in later.getvalue()


def test_a_wrong_level_or_format_names_the_right_ones(stream: io.StringIO) -> None:
    with pytest.raises(SetupError, match=r"LOUD.*DEBUG, INFO"):
        logs.configure("LOUD")
    with pytest.raises(SetupError, match=r"xml.*'text' or 'json'"):
        logs.configure("INFO", "xml")  # type: ignore[arg-type]


def test_a_foreign_handler_sees_no_secret_either(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "agent3"):
        try:
            raise RuntimeError("password=s3cr3t-value")
        except RuntimeError:
            logs.get("x").exception("token=%s", "s3cr3t-value", extra={"cookie": "s3cr3t-value"})
    assert caplog.records[0].getMessage() == "token=[redacted]"
    assert "RuntimeError: password=[redacted]" in caplog.text
    assert "s3cr3t" not in caplog.text + repr(vars(caplog.records[0]))


def test_lines_of_other_libraries_are_cleaned_and_heard_from_warning_on(stream: io.StringIO) -> None:
    other = logging.getLogger("some.library")
    other.info("not heard")
    other.warning("Authorization: Bearer %s", "s3cr3t-value")
    assert [line["message"] for line in lines(stream)] == ["Authorization: [redacted]"]


def test_logging_never_fails_the_one_who_logs(stream: io.StringIO) -> None:
    class Broken:
        def __str__(self) -> str:
            raise KeyError("no")

    log = logs.get()
    log.info("%d and %d", "x")
    log.info("%s", Broken())
    log.info("field", extra={"one": Broken(), "big": 2**80, "raw": b"123", "set": {1}, "self": _endless()})
    first, second, third = lines(stream)
    assert "could not be formatted: TypeError" in first["message"]
    assert "could not be formatted: KeyError" in second["message"]
    assert third["one"] == "<Broken: KeyError while showing it>"
    assert (third["big"], third["raw"], third["set"]) == (str(2**80), "<3 bytes>", [1])


def test_a_field_never_overwrites_what_the_line_says_itself(stream: io.StringIO) -> None:
    logs.get().info("true", extra={"level": "critical", "logger": "forged"})
    [line] = lines(stream)
    assert (line["level"], line["logger"]) == ("info", "agent3")
    assert (line["level_"], line["logger_"]) == ("critical", "forged")


@pytest.mark.parametrize(
    "text",
    [
        "eyJ-" * 20_000,
        "token" * 20_000,
        "token=\\" * 10_000,
        "bearer " * 10_000,
        "bearer" + " " * 60_000,
        "-----BEGIN " * 6_000,
        "basic " + "a" * 60_000,
        "://" * 20_000,
        "password='" * 6_000,
        "sk-" * 20_000,
        "cookie:" * 9_000,
    ],
)
def test_no_text_makes_the_search_for_secrets_slow(text: str) -> None:
    start = time.process_time()
    logs.scrub(text)
    assert time.process_time() - start < 20.0, "anything worse than linear takes minutes"


def _endless() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless
