"""Which value is which, and where a name ends: what the form of a code or a word tells is read, the rest is asked."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from agent3.model import Capability
from agent3.sentences import Ask, Reading, Understood, read
from agent3.sentences.slots import form_of_code

NOW = datetime(2026, 11, 16, 10, 0)


def capability(name: str, described: str, /, **given: str | dict[str, Any]) -> Capability:
    """All parameters are required; one that is only described is a text."""
    properties = {
        key: {"type": "string", "description": one} if isinstance(one, str) else one for key, one in given.items()
    }
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return Capability(name=name, description=described, input_schema=schema)


ASSIGN = capability("assign_issue", "Assign an issue", issue="Issue key, e.g. ENG-12", assignee="Who it goes to")
TASK = capability("assign_task", "Assign a task", task="Task name", assignee="Who does it")
SEAT = capability("assign_seat", "Assign a seat", seat="Seat (for example 14C)", passenger="Passenger")
PHOTO = capability("move_photo", "Move a photo to an album", photo="Photo, like IMG_1234", album="Album")
LINK = capability("link_issues", "Link two issues", issue="Key, e.g. ENG-1", linked_issue="Key, e.g. ENG-2")
GATE = capability("change_gate", "Change the gate of a flight", flight="Flight, e.g. IB3166", gate="Gate, e.g. K72")
OWNER = capability("change_owner", "Change the owner of a document", document="Document", owner="New owner")
SWAP = capability("replace_player", "Replace a player", player_out="Who leaves", player_in="Who comes in")
PAGES = capability("link_pages", "Link two pages", page="Page", other_page="Page to link with")
COPY = capability("copy_page", "Copy a page between spaces", page="Page title", from_space="Space", to_space="Space")
CARD = capability("move_card", "Move a card to another column", card="Card name", column="Target column")
TRACK = capability("add_to_playlist", "Add a track to a playlist", track="Track name", playlist="Playlist name")
DONE = capability("complete_task", "Complete a task", task="Task name")
TRAIN = capability("book_train", "Book a train", origin="Station", destination="Station")
MENTOR = capability("assign_mentor", "Assign a mentor to a trainee", trainee="Trainee name", mentor="Mentor name")
REPORT = capability("submit_report", "Submit a report to a manager", report="Report name", manager="Manager")
FOLDER = capability("move_folder", "Move a folder into another", folder="Folder name", parent="Parent folder name")
SPRINT = capability("move_issue", "Move an issue to a sprint", issue="Issue key (ABC-123)", sprint="Sprint name")
ROOM = capability("rename_room", "Rename a room", room="Room", new_name="New name")
PRIORITY = capability("set_priority", "Set the priority of a ticket", ticket="Ticket name",
                      priority={"enum": ["low", "high"]})  # fmt: skip
TAGS = capability("tag_item", "Add tags to an item", item="Item", tags={"type": "array", "items": {"type": "string"}})


def said(what: Capability, sentence: str) -> Reading:
    return read(what, sentence, NOW)


@pytest.mark.parametrize(
    ("what", "sentence", "expected"),
    [
        (ASSIGN, "assign OPS-7 to karla", {"issue": "OPS-7", "assignee": "karla"}),
        (ASSIGN, "asigna OPS-7 a Miguel Ángel", {"issue": "OPS-7", "assignee": "Miguel Ángel"}),
        (ASSIGN, "assign karla to OPS-7", {"issue": "OPS-7", "assignee": "karla"}),
        (ASSIGN, "assign OPS-7 to karla2", {"issue": "OPS-7", "assignee": "karla2"}),
        (SEAT, "assign Ana to 2B", {"seat": "2B", "passenger": "Ana"}),
        (SEAT, "asigna a Ana López el 2B", {"seat": "2B", "passenger": "Ana López"}),
        (PHOTO, "move IMG_55 to Summer", {"photo": "IMG_55", "album": "Summer"}),
        (PHOTO, "mueve a Verano la foto IMG_55", {"photo": "IMG_55", "album": "Verano"}),
        (TASK, "asigna Informe a Ana", {"task": "Informe", "assignee": "Ana"}),
        (GATE, "change the gate of IB77 to K9", {"flight": "IB77", "gate": "K9"}),
        (GATE, "cambia la puerta de IB77 a K9", {"flight": "IB77", "gate": "K9"}),
        (OWNER, "change the owner of Budget to Ana", {"document": "Budget", "owner": "Ana"}),
        (COPY, "copy Home to Beta from Alpha", {"page": "Home", "from_space": "Alpha", "to_space": "Beta"}),
    ],
)
def test_a_value_goes_where_its_form_or_a_word_says(what: Capability, sentence: str, expected: Any) -> None:
    found = said(what, sentence)
    assert isinstance(found, Understood), found
    assert found.input == expected


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (ASSIGN, "assign karla to miguel"),  # neither is an issue
        (TASK, "assign Ana to Report"),  # the verb may be said of either
        (LINK, "link ENG-1 with ENG-2"),
        (LINK, "enlaza ENG-1 con ENG-2"),
        (GATE, "change IB77 to K9"),
        (OWNER, "make Ana the owner of Budget"),
        (OWNER, "set Ana as the owner of Budget"),
        (MENTOR, "assign Ana as mentor to Luis"),
        (REPORT, "submit Sales report to Ana"),
        (SWAP, "replace player Ana with Luis"),
        (PAGES, "link Home with About"),
        (COPY, "copy Home Alpha Beta"),
    ],
)
def test_two_values_that_could_change_places_are_asked_about(what: Capability, sentence: str) -> None:
    assert isinstance(said(what, sentence), Ask), said(what, sentence)


@pytest.mark.parametrize(
    ("what", "sentence", "expected"),
    [
        (CARD, "mueve la tarjeta Logo nuevo a Doing", {"card": "Logo nuevo", "column": "Doing"}),
        (CARD, "mueve a Doing la tarjeta Logo nuevo", {"card": "Logo nuevo", "column": "Doing"}),
        (CARD, "move the card Get well soon to Done", {"card": "Get well soon", "column": "Done"}),
        (TRACK, "add track Let it go to playlist Road trip", {"track": "Let it go", "playlist": "Road trip"}),
        (TRACK, "añade la canción Vida nueva a la lista Verano", {"track": "Vida nueva", "playlist": "Verano"}),
        (DONE, "complete the task Call mum please", {"task": "Call mum"}),
        (ROOM, "rename room Blue to Red new", {"room": "Blue", "new_name": "Red new"}),
        (PRIORITY, "set the ticket Login new to high", {"ticket": "Login new", "priority": "high"}),
    ],
)
def test_a_name_reaches_to_the_next_border(what: Capability, sentence: str, expected: Any) -> None:
    found = said(what, sentence)
    assert isinstance(found, Understood), found
    assert found.input == expected


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (CARD, "mueve la tarjeta logo nuevo a doing"),
        (CARD, "move the card Fix login please to Done"),
        (DONE, "complete the task Call mum now"),  # when, or what?
        (DONE, "complete Logo nuevo"),
        (PAGES, "link the page Home with About us"),
        (TRAIN, "reserva un tren a Sevilla desde Villa nueva"),
        (PRIORITY, "set the priority of Login bug to high"),
        (FOLDER, "move the folder Photos new into the folder Archive"),
        (SPRINT, "move ABC-9 to Sprint 4"),
        (ROOM, "renombra la sala Azul a Sala nueva"),
        (TAGS, "add the tags urgent, new to the item Report"),
    ],
)
def test_a_name_is_never_cut_to_what_is_sure_of_it(what: Capability, sentence: str) -> None:
    assert isinstance(said(what, sentence), Ask), said(what, sentence)


def test_codes_of_one_form_are_alike_whatever_their_letters_and_digits() -> None:
    assert form_of_code("ENG-12") == form_of_code("ops-7") == "A-9"
    assert form_of_code("IB3166") == form_of_code("A1B2C3") == "X"
    assert form_of_code("karla") == form_of_code("2026") == form_of_code("2nd") == ""
