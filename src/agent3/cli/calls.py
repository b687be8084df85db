"""``agent3 call``: one call of an agent, and the questions that it asks on the way."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from shlex import quote
from typing import Annotated, Any

from cyclopts import Parameter

from agent3.cli.exit_codes import QUESTION, exit_code
from agent3.cli.options import GatewayOptions, connect
from agent3.cli.output import is_interactive, print_error
from agent3.errors import ValidationError, by_code
from agent3.terminal.output import clean, print_indented, print_note, print_result

__all__ = ["call", "print_answer"]


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
        Its id, as agent3 search prints it.
    message:
        What it should do; with --job, the answer to its question. Put -- before text that begins with a hyphen.
    capability:
        Which of its capabilities, if it has several.
    input:
        Structured input as JSON, following the schema of the capability.
    timeout:
        Seconds that the call may take [default: 30].
    retries:
        How often a failed attempt may be repeated, where that is safe [default: 1].
    job:
        Continue the job that asked a question.
    """
    gateway = connect(options)
    try:
        given = None if input is None else json.loads(input)
    except ValueError as error:
        raise ValidationError(f"--input is not JSON: {error}. Quote it for your shell.") from None
    metadata = {"timeout": timeout * 1000 if timeout is not None else None, "retries": retries, "job": job}
    arguments = {"agentId": agent, "message": " ".join(message), "capability": capability, "input": given}
    answer = gateway.call(_drop_empty(arguments) | {"metadata": _drop_empty(metadata)})
    while answer.get("status") == "needs" and is_interactive(options.json):
        answers = _ask_person(answer["questions"])
        if answers is None:
            break
        answer = gateway.call({"agentId": agent, "metadata": {"job": answer["job"], "answers": answers}})
    print_result(answer, options.json, lambda answer: print_answer(answer, agent, options))
    if not answer["success"] and answer.get("status") != "working":
        sys.exit(QUESTION if answer.get("status") == "needs" else exit_code(by_code(str(answer.get("errorCode")))))


def print_answer(answer: Mapping[str, Any], agent: str, options: GatewayOptions) -> None:
    """The result alone on standard output; a failure, or the command to go on with, on standard error."""
    if answer.get("status") == "needs":
        for question in answer["questions"]:
            print(_question_text(question))
        print_note(f"It waits for your answer: {_next_command(agent, 'ANSWER', answer, options)}")
    elif answer.get("status") == "working":
        print_note(f"It is still working. To see its result: {_next_command(agent, '', answer, options)}")
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


def _drop_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in (None, "")}


def _ask_person(questions: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Put the questions to the person at the terminal; None if they leave them open (Ctrl-D, Ctrl-C)."""
    answers: dict[str, Any] = {}
    for question in questions:
        if url := question.get("url"):
            print(f"  Open {url}, then press Enter.")
        try:
            answers[question["id"]] = input(f"{_question_text(question)} ")
        except (EOFError, KeyboardInterrupt):
            print()
            return None
    return answers


def _question_text(question: Mapping[str, Any]) -> str:
    """A question, with the choices that it does not name itself."""
    from agent3.schema.coercion import choices  # loads the validator, which other calls do without

    offered = [str(choice) for choice in choices(question.get("schema"))]
    if offered == ["yes", "no"] and "¿" in question["text"]:
        offered = ["sí", "no"]
    hint = f" ({' / '.join(offered)})" if any(choice not in question["text"] for choice in offered) else ""
    return f"{question['text']}{hint}"


def _next_command(agent: str, answer_text: str, answer: Mapping[str, Any], options: GatewayOptions) -> str:
    """The command that goes on with a job, at the same gateway."""
    same = {"--server": options.server, "--db": options.db, "--config": options.config}
    named = [word for name, value in same.items() if value is not None for word in (name, str(value))]
    words = ["agent3", "call", agent, answer_text, "--job", answer["job"], *named, "--demo" if options.demo else ""]
    return " ".join(quote(word) for word in words if word)
