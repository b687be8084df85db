"""More content for ``bench.redesigned``, written after the rules of healing: none of them was found on these pages."""

from __future__ import annotations

from bench.contents import Bar, Control, Form, Page, Rows

__all__ = ["PAGES"]


def _button(key: str, words: str, instead: str = "") -> Control:
    return Control(key, "button", tuple(words.split("|")), instead)


def _link(key: str, words: str, instead: str = "") -> Control:
    return Control(key, "link", tuple(words.split("|")), instead)


def _text(key: str, words: str) -> Control:
    return Control(key, "text", tuple(words.split("|")))


def _select(key: str, words: str, options: str) -> Control:
    return Control(key, "select", tuple(words.split("|")), options=tuple(options.split("|")))


PAGES = (
    Page(
        "orchard",
        "en",
        "Orchard volunteers",
        (
            Bar(
                ("Sections",),
                (_link("rota", "Rota|Schedule"), _link("tools", "Tool shed"), _link("map", "Map of trees")),
            ),
            Rows(
                ("Shifts this month", "Upcoming shifts"),
                ("Shift", "Place", "Hours"),
                (
                    ("Pruning pears", "North slope", "3"),
                    ("Mulching", "Gate", "2"),
                    ("Picking plums", "Old wall", "4"),
                    ("Grafting class", "Barn", "5"),
                ),
                (_button("join", "Join shift|Take this shift", "Swap shift"), _link("notes", "Read notes|Notes")),
                (("Fence repair", "Road side", "6"),),
            ),
            Form(
                ("Report a sick tree", "Tell us about a tree"),
                (
                    _text("tree", "Number of the tree|Tree number"),
                    _select("sign", "What you see|Symptom", "Spots|Rot|Insects"),
                    _text("name", "Your name"),
                    _button("report", "Send report|Report tree", "Clear form"),
                ),
            ),
        ),
    ),
    Page(
        "taller",
        "es",
        "Taller de bicicletas",
        (
            Rows(
                ("Reparaciones", "Trabajos abiertos"),
                ("Bicicleta", "Avería", "Precio"),
                (
                    ("Orbea roja", "Freno delantero", "25 €"),
                    ("BH plegable", "Cadena", "18 €"),
                    ("Trek gris", "Rueda trasera", "40 €"),
                ),
                (
                    _button("avisar", "Avisar al cliente|Avisar", "Llamar al proveedor"),
                    _button("cerrar", "Dar por hecha"),
                ),
                (("Giant azul", "Cambio", "32 €"),),
            ),
            Form(
                ("Nueva reparación", "Alta de reparación"),
                (
                    _text("modelo", "Modelo de la bicicleta|Modelo"),
                    _text("telefono", "Teléfono de contacto|Teléfono"),
                    _select("urgencia", "Urgencia", "Normal|Hoy|Sin prisa"),
                    _button("guardar", "Guardar reparación|Registrar reparación", "Vaciar"),
                ),
            ),
            Bar(("Vistas",), (_link("piezas", "Piezas"), _link("agenda", "Agenda|Calendario"), _link("caja", "Caja"))),
        ),
    ),
    Page(
        "observatory",
        "en",
        "Observatory bookings",
        (
            Form(
                ("Find a night", "Search nights"),
                (
                    _text("object", "Object to observe|Target"),
                    _select("scope", "Telescope", "Refractor|Reflector|Radio dish"),
                    _text("people", "Number of visitors|Visitors"),
                    _button("find", "Find nights|Search", "Surprise me"),
                ),
            ),
            Rows(
                ("Free nights", "Nights available"),
                ("Night", "Moon", "Guide"),
                (
                    ("Tuesday 3 March", "new", "Ilse Brandt"),
                    ("Friday 6 March", "waxing", "Tom Reyes"),
                    ("Sunday 15 March", "full", "Ana Novak"),
                    ("Monday 23 March", "waning", "Tom Reyes"),
                ),
                (_button("book", "Book night|Reserve night", "Watch night"), _link("weather", "Forecast|Weather")),
            ),
            Bar(("More",), (_link("guides", "Guides"), _link("gallery", "Gallery|Pictures"), _link("shop", "Shop"))),
        ),
    ),
)
