"""The tree of errors: drawn as it is, each with what every door needs."""

from __future__ import annotations

import re

import pytest

from agent3 import errors
from agent3.calls.outcomes import REFUSALS, error_of, failed_by, failed_by_any, is_refusal
from agent3.errors import (
    AccessError,
    Agent3Error,
    CallTimeout,
    Canceled,
    CircuitOpen,
    MissingExtra,
    RateLimited,
    TargetError,
    Unavailable,
    ValidationError,
    by_code,
    family,
)
from agent3.model import Done, Failed

EVERY = [one for one in dict.fromkeys(family()) if one.__module__ == errors.__name__]


def test_the_drawing_shows_the_tree_as_it_is() -> None:
    drawn = re.findall(r"^\s*[│├└─ ]*(\w+)\s{2,}(\w+)\b(.*)$", errors.__doc__ or "", re.MULTILINE)
    assert {(name, code) for name, code, _ in drawn} == {(one.__name__, one.code) for one in EVERY}
    retryable = {name for name, _, rest in drawn if "(retryable)" in rest}
    for one in EVERY:
        above = {parent.__name__ for parent in one.__mro__}
        if one.__name__ in retryable:
            assert one.retryable, one
        elif not above & retryable:
            assert not one.retryable, one


def test_every_code_is_its_own_and_leads_back() -> None:
    assert len({one.code for one in EVERY}) == len(EVERY)
    for one in EVERY:
        assert by_code(one.code) is one
        assert one.__doc__
        assert 400 <= one.http_status < 600
        assert -32768 <= one.rpc_code <= -32000
        assert one.__name__ in errors.__all__
    assert by_code("something_foreign") is TargetError


def test_json_rpc_codes_of_the_standard_are_kept() -> None:
    assert {one.code: one.rpc_code for one in EVERY if one.rpc_code in (-32700, -32600, -32601)}.items() >= {
        "parse_error": -32700,
        "invalid_request": -32600,
        "method_not_found": -32601,
    }.items()
    assert ValidationError.rpc_code == -32602
    assert Agent3Error.rpc_code == -32603


def test_the_machine_form_is_the_same_for_all() -> None:
    plain = Agent3Error("words")
    assert plain.to_dict() == {"code": "internal", "message": "words", "retryable": False}
    limited = RateLimited("later", retry_after=1.23456, data={"a": 1})
    assert limited.to_dict() == {
        "code": "rate_limited",
        "message": "later",
        "retryable": True,
        "retry_after": 1.235,
        "data": {"a": 1},
    }
    faults = [{"path": "a"}]
    assert ValidationError("no", errors=faults).to_dict()["data"] == {"errors": faults}
    assert str(plain) == "words"


def test_a_missing_extra_says_how_to_get_it() -> None:
    assert "pip install 'agent3[postgres]'" in MissingExtra("PostgreSQL", "postgres").message


def test_a_call_timeout_is_a_timeout_to_python() -> None:
    with pytest.raises(TimeoutError):
        raise CallTimeout("late")


@pytest.mark.parametrize("kind", EVERY)
def test_an_outcome_and_an_error_stand_for_each_other(kind: type[Agent3Error]) -> None:
    error = kind.__new__(kind)
    Agent3Error.__init__(error, "words", data={"a": 1}, retry_after=2.0)
    error.sent = False
    outcome = failed_by(error)
    assert (outcome.code, outcome.message, outcome.retryable) == (kind.code, "words", kind.retryable)
    back = error_of(outcome)
    assert type(back) is kind
    assert (back.message, back.retry_after) == ("words", 2.0)
    if kind is not ValidationError:
        assert (back.data, back.sent) == ({"a": 1}, False)


def test_faults_survive_the_way_through_an_outcome() -> None:
    back = error_of(failed_by(ValidationError("no", errors=[{"path": "a"}])))
    assert isinstance(back, ValidationError)
    assert back.errors == [{"path": "a"}]


def test_foreign_exceptions_become_target_failures_with_their_words() -> None:
    assert failed_by_any(ValueError("x" * 9000), "pizza").message.startswith("pizza failed: ValueError: xxx")
    assert len(failed_by_any(ValueError("x" * 9000), "pizza").message) < 2100
    assert failed_by_any(KeyError(), "pizza").message == "pizza failed: KeyError"
    assert failed_by_any(TimeoutError("x"), "pizza").code == "timeout"
    assert failed_by_any(Canceled("stop"), "pizza") == Failed("canceled", "stop")


def test_refusals_are_what_the_caller_or_the_house_said_no_to() -> None:
    for code in REFUSALS:
        assert issubclass(by_code(code), errors.RequestError | AccessError), code
    assert not REFUSALS & {Unavailable.code, CircuitOpen.code, Canceled.code}


def test_what_a_target_says_is_no_refusal_whatever_its_code() -> None:
    assert is_refusal(Failed("not_found", "no such agent"))
    assert not is_refusal(Failed("not_found", "no such customer", asked=True))
    assert not is_refusal(Failed("unavailable", "it is down"))
    assert not is_refusal(Done())
