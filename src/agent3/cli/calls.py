"""``agent3 call``: call an agent and answer its questions."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Annotated, Any

from cyclopts import Parameter

from agent3.cli.agents import type_text
from agent3.cli.exit_codes import QUESTION, exit_code
from agent3.cli.options import GatewayOptions, connect
from agent3.cli.output import is_interactive, print_error
from agent3.errors import ValidationError, by_code
from agent3.model import one_line
from agent3.terminal.output import clean, print_indented, print_note, print_result

__all__ = ["call", "cancel", "print_answer"]

_WORDS = 160
"""Characters of the description of one form field."""


def call(
    agent: str,
    message: tuple[str, ...] = (),
    *,
    capability: str | None = None,
    input: Annotated[str | None, Parameter(name="--input")] = None,  # noqa: A002 - the option is called so
    timeout: float | None = None,
    retries: int | None = None,
    job: str | None = None,
    options: GatewayOptions = GatewayOptions(),  # noqa: B008 - frozen
) -> None:
    """Call an agent in plain words, or with structured input.

    Parameters
    ----------
    agent:
        Id of the agent, as printed by agent3 search.
    message:
        What the agent should do; with --job, the answer to its question. Put -- before text that starts with a hyphen.
    capability:
        Which capability to call, if the agent has several.
    input:
        Structured input as JSON, matching the schema of the capability.
    timeout:
        Seconds that the call may take [default: 30].
    retries:
        How often to repeat a failed attempt, if that is safe [default: 1].
    job:
        Continue this job, which asked a question.
    """
    gateway = connect(options)
    try:
        given = None if input is None else json.loads(input)
    except ValueError as error:
        raise ValidationError(f"--input is not valid JSON: {error}. Check the quoting for your shell.") from None
    metadata = {"timeout": timeout * 1000 if timeout is not None else None, "retries": retries, "job": job}
    arguments = {"agentId": agent, "message": " ".join(message), "capability": capability, "input": given}
    answer = gateway.call(_drop_empty(arguments) | {"metadata": _drop_empty(metadata)})
    while answer.get("status") == "needs" and is_interactive(options.json) and not _waits_for_others(answer):
        answers = _ask_person(answer["questions"])
        if answers is None:
            break
        answer = gateway.call({"agentId": agent, "metadata": {"job": answer["job"], "answers": answers}})
    print_result(answer, options.json, lambda answer: print_answer(answer, agent, options))
    if not answer["success"] and answer.get("status") != "working":
        sys.exit(QUESTION if answer.get("status") == "needs" else exit_code(by_code(str(answer.get("errorCode")))))


def cancel(job: str, *, options: GatewayOptions = GatewayOptions()) -> None:  # noqa: B008 - frozen
    """Cancel a job that is working or waiting for an answer.

    An operator may cancel the job of any caller; everybody else only their own.

    Parameters
    ----------
    job:
        Id of the job, as printed by agent3 call or agent3 calls open. To cancel a call while you wait for it, press
        Ctrl-C.
    """

    def say(found: Mapping[str, Any]) -> None:
        ended = "Canceled." if found["status"] == "canceled" else f"The job has already ended: {found['status']}."
        print(clean(ended))

    print_result(connect(options).cancel(job), options.json, say)


def print_answer(answer: Mapping[str, Any], agent: str, options: GatewayOptions) -> None:
    """The result alone on standard output; failures and the command to continue on standard error."""
    if answer.get("status") == "needs":
        for question in answer["questions"]:
            print(_question_text(question))
        if _waits_for_others(answer):
            print_note(f"You need not answer. To check on it: {_next_command(agent, '', answer, options)}")
        else:
            print_note(f"The job waits for your answer: {_next_command(agent, 'ANSWER', answer, options)}")
    elif answer.get("status") == "working":
        print_note(f"The job is still working. To get its result: {_next_command(agent, '', answer, options)}")
    elif not answer["success"]:
        error = answer["error"]
        if answer.get("errorCode") == "invalid_input" and "Missing required" in error:
            error += f"{'' if error.endswith(('.', '?')) else '.'} See: agent3 show {quote(agent)}"
        print_error(error)
    else:
        result = answer.get("result")
        print(result) if isinstance(result, str) else print_indented(result)
        for notice in answer.get("metadata", {}).get("notices", ()):
            print_note(clean(str(notice)))


def _waits_for_others(answer: Mapping[str, Any]) -> bool:
    """Whether another person decides, such as an approver; no answer of the caller counts then."""
    return all(question.get("by") for question in answer["questions"])


def _drop_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in (None, "")}


def _ask_person(questions: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Ask the person at the terminal; None if they leave a question open (Ctrl-D, Ctrl-C)."""
    answers: dict[str, Any] = {}
    for question in questions:
        if url := question.get("url"):
            print(f"  Open {url}, then press Enter.")
        try:
            said = input(f"{_question_text(question)} ")
            given = None
            while not said.strip() and not url and (given := _answer_without_words(question)) is None:
                said = input("Please answer, or press Ctrl-D to leave the question open.")
        except (EOFError, KeyboardInterrupt):
            print()
            return None
        # As words: "no" and "never mind" are then no values.
        answers[question["id"]] = {"said": said} if given is None else given
    return answers


def _answer_without_words(question: Mapping[str, Any]) -> Any:
    """What Enter alone means: the default, or nothing if the form requires nothing; None if it is no answer."""
    schema = question.get("schema") or {}
    if schema.get("type") == "object" and schema.get("properties") and not schema.get("required"):
        return {}
    return schema.get("default")


def _question_text(question: Mapping[str, Any]) -> str:
    """A question, with the choices that its text does not name, or the fields of its form."""
    from agent3.schema.coercion import choices  # loads the validator, which other calls do without

    schema = question.get("schema") or {}
    if len(fields := schema.get("properties") or {}) > 1:
        return clean("\n".join([question["text"], *_form_lines(fields, schema.get("required") or ())]))
    offered = [str(choice) for choice in choices(schema)]
    if offered == ["yes", "no"] and "¿" in question["text"]:
        offered = ["sí", "no"]
    hint = f" ({' / '.join(offered)})" if any(choice not in question["text"] for choice in offered) else ""
    return f"{question['text']}{hint}"


def _form_lines(fields: Mapping[str, Any], required: Sequence[str]) -> Iterator[str]:
    """The fields of a form, and how to answer them on one line."""
    for name, given in fields.items():
        field = given if isinstance(given, Mapping) else {}
        need = "required" if name in required else "optional"
        default = f", default {json.dumps(field['default'], ensure_ascii=False)}" if "default" in field else ""
        told = one_line(str(field.get("description") or field.get("title") or ""), _WORDS)
        yield f"  {name} ({type_text(field)}, {need}{default}){': ' if told else ''}{told}"
    alone = f", or {required[0]} alone" if len(required) == 1 else ""
    example = dict.fromkeys(required or [next(iter(fields))], "…")
    yield f"Answer with JSON, such as {json.dumps(example, ensure_ascii=False)}{alone}."


def _next_command(agent: str, answer_text: str, answer: Mapping[str, Any], options: GatewayOptions) -> str:
    """The command that continues a job, at the same gateway."""
    same = {"--server": options.server, "--db": options.db, "--config": options.config}
    named = [word for name, value in same.items() if value is not None for word in (name, str(value))]
    words = ["agent3", "call", agent, answer_text, "--job", answer["job"], *named, "--demo" if options.demo else ""]
    return " ".join(quote(word) for word in words if word)
