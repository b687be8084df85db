"""The garbage collector sees what came since its last long look, and at times everything."""

from __future__ import annotations

from agent3.server.collector import Collector


class Fake:
    """A garbage collector by numbers: how many objects are frozen, and how many are not."""

    def __init__(self, frozen: int, alive: int):
        self.frozen, self.alive, self.now = frozen, alive, 0.0
        self.callbacks: list[Collector] = []

    def get_freeze_count(self) -> int:
        return self.frozen

    def freeze(self) -> None:
        self.frozen, self.alive = self.frozen + self.alive, 0

    def unfreeze(self) -> None:
        self.frozen, self.alive = 0, self.frozen + self.alive

    def collect(self, seconds: float, generation: int = 2) -> int:
        """How many objects a collection looks at."""
        for callback in self.callbacks:
            callback("start", {"generation": generation})
        looked, self.now = self.alive, self.now + seconds
        for callback in self.callbacks:
            callback("stop", {"generation": generation})
        return looked


def started(alive: int) -> Fake:
    fake = Fake(0, alive)
    collector = Collector(fake, lambda: fake.now)
    collector.start()
    collector.start()
    assert len(fake.callbacks) == 1
    return fake


def test_what_survives_a_long_look_is_not_looked_at_again() -> None:
    fake = started(1_000)
    fake.alive += 900
    assert fake.collect(0.2) == 900
    assert fake.collect(0.0) == 0


def test_what_survives_a_short_look_or_one_at_young_objects_stays_in_view() -> None:
    fake = started(1_000)
    fake.alive += 900
    fake.collect(0.01)
    fake.collect(1.0, generation=1)
    assert (fake.frozen, fake.alive) == (1_000, 900)


def test_everything_is_looked_at_again_when_four_times_as_much_is_frozen() -> None:
    fake = started(1_000)
    fake.alive += 3_100
    fake.collect(0.2)
    assert fake.collect(0.2) == 4_100
    fake.alive += 1_000
    assert fake.collect(0.2) == 1_000
    assert fake.collect(0.2) == 0
