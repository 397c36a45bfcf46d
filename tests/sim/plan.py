"""Random scenarios: a seed decides the cluster, its faults and when they happen."""

import random
from collections.abc import Callable

OPERATIONS = 200
FAULTS = 3

Lines = list[str]


def plan(
    seed: int, operations: int = OPERATIONS, faults: int = FAULTS, kind: str | None = None
) -> Lines:
    """Return the lines of a scenario.

    Args:
        seed: Source of all choices.
        operations: Number of operations of its clients.
        faults: Number of faults, one after another, as the guarantees assume.
        kind: Kind of the cluster; by default the seed chooses it.
    """
    chance = random.Random(seed)
    drawn = chance.choice(("lone", "sync", "disk", "async", "three", "led", "led"))
    kind = kind or drawn
    story = _LedStory(chance, kind) if kind.startswith("led") else _Story(chance, kind)
    pause_s = chance.choice((0.2, 0.5))
    lines = [f"cluster {kind}", f"traffic {operations} {pause_s}s", f"advance {story.time(0.5, 2)}"]
    for _ in range(faults):
        lines += [*story.fault(), "heal", "calm", f"advance {story.time(0.5, 4)}"]
    return [*lines, "check"]


class _Story:
    """Faults, one after another.

    Args:
        chance: Source of all choices.
        kind: Kind of the cluster.
    """

    def __init__(self, chance: random.Random, kind: str) -> None:
        self._chance = chance
        self._kind = kind
        names = {"lone": "a", "sync": "ab", "disk": "ab", "async": "ab"}.get(kind, "abc")
        self._master, *self._slaves = names
        # Half of the runs promote no slave: then every message must reach every group.
        self._promotes = bool(self._slaves) and chance.random() < 0.5

    def time(self, shortest_s: float, longest_s: float) -> str:
        """Return a duration."""
        return f"{self._chance.uniform(shortest_s, longest_s):.2f}s"

    def fault(self) -> Lines:
        """Return the lines of a fault and its end."""
        faults: list[Callable[[], Lines]] = [
            self._restart,
            self._kill,
            self._pause,
            self._slow_disk,
            self._full_disk,
            self._clock,
            self._no_names,
            self._cut_clients,
        ]
        if self._slaves:
            faults += [self._cut, self._silence, self._silence, self._slow_link, self._delay]
            faults += [self._slave_power_cut] * 2
        if self._kind in ("lone", "disk"):
            faults += [self._power_cut] * 4
        if self._kind == "lone":
            faults += [self._failing_disk]
        if self._promotes:
            faults += [self._promote] * 6
        return self._chance.choice(faults)()

    def _any(self) -> str:
        return self._chance.choice((self._master, *self._slaves))

    def _restart(self) -> Lines:
        name = self._any()
        return [f"stop {name}", f"advance {self.time(0.1, 3)}", f"start {name}"]

    def _kill(self) -> Lines:
        name = self._any()
        return [f"kill {name}", f"advance {self.time(0.1, 3)}", f"start {name}"]

    def _pause(self) -> Lines:
        duration = self.time(0.5, 8)
        return [f"pause {self._any()} {duration}", f"advance {duration}"]

    def _slow_disk(self) -> Lines:
        name = self._any()
        return [f"disk {name} slow", f"advance {self.time(1, 6)}", f"disk {name} good"]

    def _full_disk(self) -> Lines:
        name = self._any()
        return [f"disk {name} full", f"advance {self.time(1, 6)}", f"disk {name} good"]

    def _failing_disk(self) -> Lines:
        """Let syncs fail, so that the broker stores nothing more; then cut its power."""
        name = self._master
        lines = [f"disk {name} failing", f"advance {self.time(0.5, 3)}"]
        return [*lines, f"power-cut {name}", f"disk {name} good", f"start {name}"]

    def _clock(self) -> Lines:
        change = self._chance.choice(("+2s", "+60s", "-2s", "-30s"))
        return [f"clock {self._any()} {change}", f"advance {self.time(0.1, 2)}"]

    def _no_names(self) -> Lines:
        if self._chance.random() < 0.5:
            return [f"silence n-{self._any()}", f"advance {self.time(1, 15)}"]
        return ["kill n", f"advance {self.time(0.1, 15)}", "start n"]

    def _cut_clients(self) -> Lines:
        number = self._chance.randrange(1, 7)
        word = self._chance.choice(("cut", "silence"))
        arrow = self._chance.choice(("-", "->")) if word == "silence" else "-"
        return [f"{word} c{number}{arrow}{self._master}", f"advance {self.time(0.1, 8)}"]

    def _slave(self) -> str:
        return self._chance.choice(self._slaves)

    def _cut(self) -> Lines:
        return [f"cut {self._slave()}-{self._master}", f"advance {self.time(0.05, 3)}"]

    def _silence(self) -> Lines:
        source, target = self._chance.sample((self._slave(), self._master), 2)
        arrow = self._chance.choice(("-", "->"))
        lines = [f"silence {source}{arrow}{target}", f"advance {self.time(0.5, 12)}"]
        if self._chance.random() < 0.3:
            lines += [f"cut {source}-{target}"]
        return lines

    def _slow_link(self) -> Lines:
        return [f"slow {self._master}->{self._slave()}", f"advance {self.time(1, 5)}"]

    def _delay(self) -> Lines:
        delay = self._chance.choice(("20ms", "200ms", "1s"))
        return [f"delay {self._master}-{self._slave()} {delay}", f"advance {self.time(1, 5)}"]

    def _slave_power_cut(self) -> Lines:
        name = self._slave()
        return [f"power-cut {name}", f"advance {self.time(0.1, 5)}", f"start {name}"]

    def _power_cut(self) -> Lines:
        """Cut the power of all brokers, which the guarantee survives."""
        names = (self._master, *self._slaves)
        lines: Lines = []
        if self._chance.random() < 0.5:
            # With slow syncs, more is under way.
            lines += [*(f"disk {name} slow" for name in names), f"advance {self.time(1, 4)}"]
        lines += [f"power-cut {' '.join(names)}", *(f"disk {name} good" for name in names)]
        return [*lines, f"advance {self.time(0.1, 2)}", f"start {' '.join(names)}"]

    def _promote(self) -> Lines:
        old = self._master
        new = self._slaves[0]
        lines: Lines = []
        if self._kind == "three":
            # The operator takes the slave with the longer log: the other one is paused before.
            other = self._slaves[1]
            lines += [f"kill {other}", f"advance {self.time(0.1, 2)}"]
        elif self._chance.random() < 0.3:
            lines += [f"silence {new}-{old}", f"advance {self.time(0.2, 9)}"]
        word = "kill"
        if self._kind != "three" and self._chance.random() < 0.5:
            word = "power-cut"
        how = "live" if self._kind != "disk" and self._chance.random() < 0.5 else "restart"
        lines += [f"{word} {old}", f"advance {self.time(0.1, 2)}", "heal", f"promote {new} {how}"]
        lines += [f"advance {self.time(0.2, 2)}", f"follow {old}"]
        if self._kind == "three":
            lines += [f"start {self._slaves[1]}"]
        self._master, self._slaves[0] = new, old
        return lines


class _LedStory(_Story):
    """Faults of a cluster under a controller: no operator promotes or starts a master."""

    def fault(self) -> Lines:
        """Return the lines of a fault and its end."""
        faults: list[Callable[[], Lines]] = [
            self._restart,
            self._kill,
            self._kill_one,
            self._kill_one,
            self._power_cut_one,
            self._power_cut_one,
            self._pause,
            self._pause_long,
            self._slow_disk,
            self._full_disk,
            self._clock,
            self._no_names,
            self._cut_clients,
            self._part,
            self._part,
            self._part,
            self._alone,
            self._alone,
            self._slow_link,
            self._delay,
            self._no_controller,
            self._no_controller,
            self._elect,
            self._elect,
        ]
        return self._chance.choice(faults)()

    def _part(self) -> Lines:
        """Let two of brokers and controller not hear each other, or one not the other."""
        first, second = self._chance.sample("abck", 2)
        arrow = self._chance.choice(("-", "->"))
        lines = [f"silence {first}{arrow}{second}", f"advance {self.time(0.5, 15)}"]
        if self._chance.random() < 0.3:
            lines += [f"cut {first}-{second}"]
        return lines

    def _alone(self) -> Lines:
        """Separate a broker from the others, and perhaps from the controller; clients reach it."""
        name = self._any()
        others = [other for other in "abc" if other != name]
        if self._chance.random() < 0.6:
            others.append("k")
        return [*(f"silence {name}-{other}" for other in others), f"advance {self.time(1, 15)}"]

    def _kill_one(self) -> Lines:
        """End a broker for longer: the others continue without it."""
        name = self._any()
        lines = [f"{self._chance.choice(('kill', 'power-cut'))} {name}"]
        return [*lines, f"advance {self.time(0.1, 2)}", "serving", f"start {name}"]

    def _pause_long(self) -> Lines:
        duration = self.time(3, 30)
        return [f"pause {self._chance.choice('abck')} {duration}", f"advance {duration}"]

    def _power_cut_one(self) -> Lines:
        name = self._chance.choice("abck")
        return [f"power-cut {name}", f"advance {self.time(0.1, 8)}", f"start {name}"]

    def _no_controller(self) -> Lines:
        """End the controller, and while it is away perhaps a broker."""
        lines = ["kill k", f"advance {self.time(0.1, 6)}"]
        if self._chance.random() < 0.5:
            name = self._any()
            lines += [f"kill {name}", f"advance {self.time(0.1, 6)}", "start k"]
            return [*lines, f"advance {self.time(0.1, 4)}", f"start {name}"]
        return [*lines, "start k"]

    def _elect(self) -> Lines:
        return [f"elect {self._any()}", f"advance {self.time(0.2, 3)}"]
