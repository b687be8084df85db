"""Tools of trades that nobody thinks of: what general rules make of words and numbers that no list was made for."""

from __future__ import annotations

from typing import Any

import pytest

from agent3.model import Capability
from agent3.sentences import Ask, Forbidden, Understood, read
from tests.sentences.test_mechanisms import NOW, capability, one_of, switch, whole

NUMBER = {"type": "number"}
REHEARSAL = capability("delete_rehearsal", "Delete a rehearsal of the choir.", "rehearsal_id",
                       rehearsal_id=whole("Number of the rehearsal"),
                       notify=switch("Whether singers are told by mail"))  # fmt: skip
LEND = capability("lend_tool", "Lend a tool of the shed to a member.", "tool person",
                  tool="Name of the tool", person="Who borrows it", days=whole("For how many days"))  # fmt: skip
ROPE = capability("order_rope", "Order rope by the metre.", "diameter_mm length_m",
                  diameter_mm=whole("Diameter in mm"),
                  length_m=NUMBER | {"description": "Length in metres"})  # fmt: skip
PAY = capability("pay_picker", "Pay a fruit picker for crates.", "picker crates rate", picker="Name of the picker",
                 crates=whole("Number of crates"),
                 rate=NUMBER | {"description": "Euros per crate"})  # fmt: skip
RENT = capability("assign_plot", "Assign a garden plot to a member.", "plot member", plot=whole("Number of the plot"),
                  member="Name of the member",
                  rent_per_year=NUMBER | {"description": "Yearly rent in euros"})  # fmt: skip
GRAVITY = capability("record_gravity", "Record a gravity of a batch.", "batch gravity",
                     batch="Batch number such as B2026-11",
                     gravity=NUMBER | {"minimum": 0.9, "maximum": 1.2})  # fmt: skip
TRIM = capability("trim_audio", "Cut a piece out of an audio file.", "file start end", file="Path of the audio file",
                  start="Start as HH:MM:SS", end="End as HH:MM:SS")  # fmt: skip
FOG = capability("set_fog", "Set the fog machine.", "density",
                 density=NUMBER | {"description": "Density from 0 to 1", "minimum": 0, "maximum": 1})  # fmt: skip
PRINT = capability("start_print", "Start a print of a model.", "file printer", file="Path of the model",
                   printer="Name of the printer")  # fmt: skip
BOX = capability("open_box", "Open a box for a customer.", "box customer", box=whole("Number of the box"),
                 customer="Name of the customer")  # fmt: skip
BUOY = capability("buoy_readings", "Read the measurements of a buoy.", "buoy", reads=True, buoy="Code, e.g. B-44",
                  variable=one_of("waves", "wind", "temperature"))  # fmt: skip
SEEDS = capability("search_seeds", "Search the seeds of the bank.", "", reads=True, species="Name of the plant",
                   country="Country of origin")  # fmt: skip
CARD = capability("add_card", "Add a card to a list.", "list_name name", list_name="Name of the list",
                  name="Title of the card")  # fmt: skip
ORDER = capability("reorder", "Reorder an article.", "article quantity", article="Article number, e.g. A-1001",
                   quantity=whole("Quantity"),
                   unit_price=NUMBER | {"description": "Price per unit in euros"})  # fmt: skip
BAKE = capability("schedule_bake", "Schedule a bake.", "product start", product="What is baked", start="Start, HH:MM")
READ = capability("read_text", "Read the text of a file.", "path", reads=True, path="Path of the file")
BOOK = capability("book_session", "Book a session.", "artist client", artist="Artist", client="Name of the client")


@pytest.mark.parametrize(
    ("what", "sentence", "wanted"),
    [
        (REHEARSAL, "borra el ensayo 12", {"rehearsal_id": 12}),
        (REHEARSAL, "delete rehearsal 44 and notify the singers", {"rehearsal_id": 44, "notify": True}),
        (REHEARSAL, "delete rehearsal 44 without notifying anyone", {"rehearsal_id": 44, "notify": False}),
        (LEND, "lend the belt sander to Omar for 3 days", {"tool": "belt sander", "person": "Omar", "days": 3}),
        (LEND, "presta el taladro a Lucía por cinco días", {"tool": "taladro", "person": "Lucía", "days": 5}),
        (ROPE, "order 30 metres of 12 mm rope", {"diameter_mm": 12, "length_m": 30}),
        (PAY, "pay Ioana for 34 crates at 2.50 euros per crate", {"picker": "Ioana", "crates": 34, "rate": 2.5}),
        (PAY, "paga a Mihai 20 cajas a 3 euros por caja", {"picker": "Mihai", "crates": 20, "rate": 3}),
        (RENT, "assign plot 17 to Marta Ruiz for 80 euros a year",
         {"plot": 17, "member": "Marta Ruiz", "rent_per_year": 80}),
        (RENT, "asigna la parcela 4 a José Antonio Pérez", {"plot": 4, "member": "José Antonio Pérez"}),
        (GRAVITY, "record a gravity of 1.012 for batch B2026-11", {"batch": "B2026-11", "gravity": 1.012}),
        (GRAVITY, "registra densidad 1.034 del lote B2026-09", {"batch": "B2026-09", "gravity": 1.034}),
        (TRIM, "trim ep12.mp3 from 00:01:30 to 00:45:00",
         {"file": "ep12.mp3", "start": "00:01:30", "end": "00:45:00"}),
        (FOG, "set the fog to 35%", {"density": 0.35}),
        (PRINT, "print gear.stl on printer Voron", {"file": "gear.stl", "printer": "Voron"}),
        (ORDER, "reorder 200 units of A-1002", {"article": "A-1002", "quantity": 200}),  # 200 is no price
        (BAKE, "schedule a bake of rye at 16:00", {"product": "rye", "start": "16:00"}),
        (BUOY, "wind at buoy B-12", {"buoy": "B-12", "variable": "wind"}),
        (BUOY, "dame el viento de la boya B-7", {"buoy": "B-7", "variable": "wind"}),
    ],
)  # fmt: skip
def test_what_is_said_of_an_unusual_tool_is_understood(what: Capability, sentence: str, wanted: dict[str, Any]) -> None:
    found = read(what, sentence, NOW)
    assert (found.input if isinstance(found, Understood) else None) == wanted, found


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (LEND, "lend the other sander to Omar"),
        (LEND, "lend Omar the drill and the saw"),
        (PRINT, "print gear.stl on the printer upstairs"),  # says where it is, not what it is called
        (BOX, "abre la caja 12 para el cliente de ayer"),
        (BOX, "cierra la caja 12 de Julio Ramos"),
        (SEEDS, "busca semillas de quinua"),  # a plant, and no country
        (CARD, "create a contact for a friend"),  # neither is the name of a list
        (BOOK, "book Petra with Nico"),  # who is the artist?
        (PAY, "pay Ioana 34 crates at 2.50 euros per kilo"),
        (GRAVITY, "record a gravity of 1,012 for batch B2026-11"),
        (FOG, "set the fog to 8"),
        (ORDER, "reorder A-1002 at 200"),  # so many, or for so much?
        (BAKE, "schedule a bake of rye at 4"),  # in the morning?
        (READ, "create a folder called photos in /srv/a"),
    ],
)
def test_what_is_only_half_said_of_an_unusual_tool_is_asked(what: Capability, sentence: str) -> None:
    assert isinstance(found := read(what, sentence, NOW), Ask), found


@pytest.mark.parametrize(
    "sentence",
    ["forget paying Ioana for 34 crates at 2.50 euros", "skip paying Ioana for 34 crates at 2.50 euros per crate",
     "olvida pagar a Ioana 34 cajas a 3 euros por caja"],
)  # fmt: skip
def test_to_forget_or_skip_doing_something_forbids_it(sentence: str) -> None:
    assert isinstance(found := read(PAY, sentence, NOW), Forbidden), found
