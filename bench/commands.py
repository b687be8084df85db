"""Commands to named actions: sites with their actions, sentences for them, and sentences that no action is for.

A wrong action is counted apart from one that was not chosen, which only costs a question; ``acted`` are sentences that
no action is for and one was chosen. The bounds were found on the first sites and on 150 intents of CLINC150; the sites
of ``HELD_OUT`` were written afterwards and changed nothing. ``by_words`` is without the extra ``semantic``.
"""

from __future__ import annotations

import time
from collections import Counter
from itertools import product

from agent3.arrays import np
from agent3.directory.choice import Choices
from agent3.directory.meaning import Encoder, encode_agent, load_encoder
from agent3.model import Agent, Capability
from bench.harness import Options, Result, Row, bench

__all__ = ["HELD_OUT", "SITES", "measure", "run_site"]

NOW = 1_795_000_000.0

SITES: tuple[tuple[str, str, str, str], ...] = (
    (
        "Green Paw veterinary clinic",
        """book_visit|Make an appointment for an animal|make an appointment for {pet}; bring my {animal} in
        cancel_visit|Cancel an appointment|cancel the appointment of {pet}
        show_vaccinations|The vaccinations of an animal and when they are due|when is the next vaccine of {pet} due
        order_food|Order pet food|order {product} for my {animal}
        opening_hours|When the clinic is open|when are you open
        emergency_contact|The number for emergencies at night|who do I call at night
        register_pet|Register a new animal|register my new {animal}
        pay_invoice|Pay an open invoice|pay invoice {number}""",
        """book_visit: can the doctor see my dog on Friday
        book_visit: quiero pedir cita para mi gato
        cancel_visit: we can't make it to Rex's appointment, please call it off
        cancel_visit: anula la cita de Luna
        show_vaccinations: which shots does Bella still need
        show_vaccinations: ¿cuándo le toca la próxima vacuna a Max?
        order_food: I need another bag of kibble
        order_food: pide pienso para mi perro
        opening_hours: until what time can I come by today
        opening_hours: ¿a qué hora abrís los sábados?
        emergency_contact: it's 2 am and my cat is choking, whom do I phone
        emergency_contact: teléfono de urgencias por la noche
        register_pet: we got a puppy, add him to our account
        register_pet: dar de alta un animal nuevo
        pay_invoice: settle my bill 4711
        pay_invoice: pagar la factura 12""",
        """book me a flight to Rome; what's the capital of Peru; turn off the kitchen lights; recommend a good novel
        ¿qué tiempo hará mañana?; pon música tranquila; translate hello into French; how old are you
        sell my car; transfer 100 euros to my brother; cuéntame un chiste; what is 12 times 7""",
    ),
    (
        "City parcel service",
        """track_parcel|Where a parcel is|where is my parcel {number}; track {number}
        send_parcel|Send a parcel to somebody|send a parcel to {address}
        change_address|Change the delivery address of a parcel|deliver {number} to {address} instead
        find_shop|Parcel shops near a place|parcel shops near {place}
        price_list|What sending a parcel costs|how much is a parcel of {weight} to {country}
        request_pickup|Have a parcel picked up at home|pick up a parcel at {address}
        report_damage|Report a damaged parcel|parcel {number} arrived broken
        return_parcel|Send a parcel back to its sender|return {number}""",
        """track_parcel: has my package 8812 left the depot yet
        track_parcel: ¿dónde está mi paquete 5501?
        send_parcel: I'd like to ship a box to Berlin
        send_parcel: enviar un paquete a Sevilla
        change_address: please bring 9911 to my office rather than home
        change_address: cambia la dirección de entrega del paquete 77
        find_shop: where can I drop off a package around here
        find_shop: puntos de recogida cerca de Atocha
        price_list: what does it cost to mail 3 kilos to France
        price_list: ¿cuánto cuesta mandar 2 kg a Italia?
        request_pickup: send a courier to fetch my box
        request_pickup: que vengan a recoger un paquete a mi casa
        report_damage: the vase in parcel 31 is in pieces
        report_damage: el paquete 40 ha llegado roto
        return_parcel: I don't want 620, send it back
        return_parcel: devolver el paquete 8""",
        """reserve a table for four; what is my bank balance; play the news; who won the match yesterday
        ¿cuál es la raíz cuadrada de 81?; reserva una habitación de hotel; delete all my photos; make me a sandwich
        set an alarm for six; define gravity; how do I tie a tie; apaga la televisión""",
    ),
    (
        "Northside public library",
        """search_catalogue|Find books by title, author or subject|books about {subject}; find {title}
        renew_loan|Keep a borrowed book for longer|renew {title}
        reserve_book|Reserve a book that is lent out|reserve {title}
        list_loans|The books that I have borrowed and when they are due|what have I borrowed
        pay_fine|Pay late fees|pay my fines
        book_room|Reserve a study room|book a study room for {day}
        events|Readings, courses and other events|what is on this week
        suggest_purchase|Suggest that the library buys a book|please buy {title}""",
        """search_catalogue: do you have anything on Roman history
        search_catalogue: libros de Isabel Allende
        renew_loan: I need two more weeks for Dune
        renew_loan: prorrogar el préstamo de Rayuela
        reserve_book: put me on the waiting list for Emma
        reserve_book: reserva El nombre de la rosa para mí
        list_loans: which of my books are due soon
        list_loans: ¿qué libros tengo prestados?
        pay_fine: I was late, let me settle the fee
        pay_fine: pagar mi multa por retraso
        book_room: we need a quiet room for our group on Monday
        book_room: reservar una sala de estudio para el martes
        events: any readings for children this weekend
        events: ¿qué actividades hay esta semana?
        suggest_purchase: you should get the new Murakami
        suggest_purchase: propongo que compréis este libro""",
        """order a taxi; what is the exchange rate of the dollar; water my plants; write a poem about rain
        ¿quién ganó las elecciones?; sube el volumen; how many calories are in a banana; find me a plumber
        book a haircut; cancel my phone contract; ¿cómo se hace una paella?; is my train delayed""",
    ),
)
"""The sites on which the bounds were found."""

HELD_OUT: tuple[tuple[str, str, str, str], ...] = (
    (
        "Harbour swimming pool",
        """buy_ticket|Buy a day ticket|a ticket for {day}; buy {count} tickets
        join_course|Sign up for a swimming course|sign up {child} for the {course} course
        lane_status|How full the lanes are now|how busy is it
        rent_locker|Rent a locker|rent a locker for {month}
        lost_property|Ask for something that was lost|I lost my {thing}
        water_temperature|How warm the water is|how warm is the water
        cancel_membership|End a membership|end my membership
        gift_voucher|Buy a voucher as a present|a voucher of {amount}""",
        """buy_ticket: two admissions for tomorrow please
        buy_ticket: quiero una entrada para el domingo
        join_course: enrol my daughter in beginners swimming lessons
        join_course: apuntar a mi hijo al curso de natación
        lane_status: is it crowded at the moment
        lane_status: ¿hay mucha gente ahora en la piscina?
        rent_locker: I want somewhere to keep my things for the season
        rent_locker: alquilar una taquilla
        lost_property: I think I left my goggles there yesterday
        lost_property: he perdido mis gafas de nadar
        water_temperature: is the pool cold
        water_temperature: ¿a qué temperatura está el agua?
        cancel_membership: I'm moving away and want to stop being a member
        cancel_membership: dar de baja mi abono
        gift_voucher: I'd like to give my friend a 50 euro present card
        gift_voucher: un vale regalo de 30 euros""",
        """what is the weather in Oslo; send an email to Ana; fix my bicycle; who painted Guernica
        how far is the moon; pide una pizza; ¿dónde está mi paquete?; recomiéndame una película
        convert miles to kilometres; buy me some shoes; restart the server; ¿cuánto es 7 por 8?""",
    ),
    (
        "Rowan property management",
        """report_defect|Report something broken in a flat|the {thing} is broken
        pay_rent|Pay the rent of a month|pay the rent for {month}
        meter_reading|Tell the reading of a meter|my {meter} meter reads {value}
        request_parking|Ask for a parking space|I need a parking space
        give_notice|End the lease of a flat|I am moving out on {date}
        contact_caretaker|How to reach the caretaker|how do I reach the caretaker
        service_charges|The statement of service charges|show my service charges of {year}
        add_tenant|Add a person to the lease|my {relation} is moving in""",
        """report_defect: water is dripping from the ceiling of my bathroom
        report_defect: la calefacción no funciona
        pay_rent: transfer this month's rent
        pay_rent: pagar el alquiler de mayo
        meter_reading: electricity counter shows 48210
        meter_reading: la lectura del contador del agua es 310
        request_parking: is there a spot in the garage for my car
        request_parking: solicito una plaza de aparcamiento
        give_notice: I want to terminate my rental contract
        give_notice: quiero dejar el piso en junio
        contact_caretaker: what is the janitor's phone number
        contact_caretaker: ¿cómo contacto con el conserje?
        service_charges: send me the utilities statement for 2025
        service_charges: gastos de comunidad de 2024
        add_tenant: please put my girlfriend on the contract
        add_tenant: mi hermano viene a vivir conmigo""",
        """book a doctor for Monday; tell me about black holes; order sushi; what does serendipity mean
        when does the film start; resérvame un vuelo a Lima; ¿quién escribió el Quijote?; sing a song
        buy concert tickets; what's the stock price of a bakery; tradúceme esto al alemán; call my mother""",
    ),
)
"""Name, actions (name, description, phrases), sentences with the action that they mean, sentences that mean none."""


def _capabilities(lines: str) -> list[Capability]:
    made = []
    for line in lines.splitlines():
        name, description, phrases = line.strip().split("|")
        made.append(Capability(name=name, description=description, phrases=tuple(phrases.split("; "))))
    return made


def run_site(site: tuple[str, str, str, str], encoder: Encoder | None) -> Counter[str]:
    """How many sentences were right, wrong, asked about, rightly left alone or acted on."""
    name, actions, meant, foreign = site
    offered = _capabilities(actions)
    agent = Agent(id=name, name=name, capabilities=tuple(offered))
    vectors = None if encoder is None else encode_agent(encoder, agent).astype(np.float32) / np.float32(127)
    choices, tally = Choices(offered, encoder, vectors), Counter[str]()
    for line in meant.splitlines():
        wanted, _, sentence = line.strip().partition(": ")
        found = choices.choose(offered, sentence, NOW)
        tally["asked" if found is None else "right" if found.name == wanted else "wrong"] += 1
    for sentence in foreign.replace("\n", ";").split(";"):
        tally["left_alone" if choices.choose(offered, sentence.strip(), NOW) is None else "acted"] += 1
    return tally


def _many(encoder: Encoder | None) -> float:
    """Milliseconds of processor time for a sentence to a site of 150 actions."""
    names = [f"{verb}_{noun}" for verb in "book search cancel list check update rate share track compare".split()
             for noun in "flights hotels rooms cars trains tickets tables menus orders events songs films books pens"
             " bags".split()]  # fmt: skip
    offered = [Capability(name=one, description=one.replace("_", " ")) for one in names]
    agent = Agent(id="many", name="Many", capabilities=tuple(offered))
    vectors = None if encoder is None else encode_agent(encoder, agent).astype(np.float32) / np.float32(127)
    choices = Choices(offered, encoder, vectors)
    said = [
        "find me a place to sleep in Porto",
        "compare the trains to Vienna on Monday",
        "order a pizza",
        "valora el hotel",
    ]
    for sentence in said:
        choices.choose(offered, sentence, NOW)
    began = time.process_time()
    for sentence in said * 10:
        choices.choose(offered, sentence, NOW)
    return (time.process_time() - began) / (10 * len(said)) * 1e3


@bench("commands", "Sentences for the named actions of sites: right, wrong, asked; and those that no action is for")
def measure(options: Options) -> Result:
    """Every site by words and meaning, and by words alone; then the time with 150 actions."""
    rows: list[Row] = []
    ratios: dict[str, float | None] = {}
    ways = {"by_words": None, "by_meaning": load_encoder()}
    for half, (way, encoder) in product(("tuned", "held_out"), ways.items()):
        if way == "by_meaning" and encoder is None:
            continue
        total = Counter[str]()
        for site in SITES if half == "tuned" else HELD_OUT:
            total += run_site(site, encoder)
        meant, foreign = total["right"] + total["wrong"] + total["asked"], total["left_alone"] + total["acted"]
        rows.append(
            Row(f"{half}_{way}", p50_ms=_many(encoder), errors=total["wrong"] + total["acted"], extra=dict(total))
        )
        ratios |= {
            f"{half}_{way}_right": round(total["right"] / meant, 3),
            f"{half}_{way}_wrong": round(total["wrong"] / meant, 3),
            f"{half}_{way}_acted": round(total["acted"] / foreign, 3),
        }
    return Result(rows, ratios)
