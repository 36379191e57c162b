"""Two dispatchers never hold a mandate at once: any order of moves, deaths, pauses, and a database that comes and goes."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from inference.dispatch.mandate import ECHO_LASTS_S, ROW_LASTS_S, SETTLES_S, Claim, Contest, Mandate

GATEWAYS = ("g1", "g2", "g3", "g4", "g5")
STALE_S = 1.25
STEPS_S = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0, 1.1, 1.25, 1.3, 3.0])


def settled(mandate: Mandate, *gateways: str, now_s: float) -> None:
    for gateway in gateways:
        mandate.came(gateway, now_s - SETTLES_S)
        mandate.echoed(gateway, now_s)


def test_the_row_counts_for_a_while_and_then_more_than_half_must_be_there() -> None:
    mandate = Mandate([GATEWAYS])
    mandate.row_holds(10.0)
    assert mandate.holds(10.0 + ROW_LASTS_S) and not mandate.holds(10.01 + ROW_LASTS_S)
    settled(mandate, "g1", "g2", now_s=20.0)
    assert not mandate.holds(20.0)
    settled(mandate, "g3", now_s=20.0)
    assert mandate.holds(20.0 + ECHO_LASTS_S) and not mandate.holds(20.01 + ECHO_LASTS_S)
    mandate.echoed("g1", 20.5)
    assert not mandate.holds(20.01 + ECHO_LASTS_S), "one of three is no majority of five"
    mandate.left("g1")
    assert not mandate.holds(20.0)


def test_half_is_no_majority_and_of_two_sets_it_needs_both() -> None:
    mandate = Mandate([("g1", "g2")])
    settled(mandate, "g1", now_s=5.0)
    assert not mandate.holds(5.0)
    mandate.is_own("g2")
    assert mandate.holds(5.0)
    mandate.member_sets = (frozenset(("g1", "g2")), frozenset(("g1", "g2", "g3", "g4")))
    assert not mandate.holds(5.0)
    assert not Mandate().holds(0.0)
    assert not Mandate([()]).holds(0.0)


def test_one_who_has_just_come_is_not_counted_yet_nor_for_a_beat_of_before() -> None:
    mandate = Mandate([("g1",)])
    mandate.came("g1", 10.0)
    mandate.echoed("g1", 10.0 + SETTLES_S)
    assert not mandate.holds(9.99 + SETTLES_S)
    assert mandate.holds(10.0 + SETTLES_S)
    mandate.echoed("stranger", 10.0)
    assert not Mandate([("stranger",)]).holds(10.0)


def test_a_contest_is_won_by_half_and_after_the_others_have_lapsed() -> None:
    contest = Contest(("g1", "g2", "g3", "g4"))
    contest.came("g1", 1.0)
    contest.came("x", 1.0)
    assert not contest.is_won(100.0)
    contest.signed_off(("g4", "y"), 100.0)
    assert not contest.is_won(99.9 + SETTLES_S)
    assert contest.is_won(100.0 + SETTLES_S)
    assert contest.missing() == {"g2", "g3"}
    assert Contest(()).is_won(0.0), "of nobody, nobody has more than half"


def test_who_began_without_the_row_and_takes_it_counts_those_who_have_come_and_waits_while_it_is_another_s() -> None:
    claim = Claim(Mandate([("g1", "g2", "g3")]), has_row=False)
    for gateway in ("g1", "g2"):
        claim.came(gateway, 0.0)
        claim.mandate.echoed(gateway, 5.0)
    assert claim.may_open(5.0)
    claim.is_barred = True
    assert not claim.may_open(5.0)
    claim.took_row(Contest(("g1", "g2", "g3")), 5.0)
    assert not claim.may_open(5.0)
    assert claim.may_open(5.0 + SETTLES_S)


class World(RuleBasedStateMachine):
    """Machines a and b share a row. Each is what its process knows: it may be paused, cut off from the database, or both.

    As in leadership.py: the holder renews; another takes a row it has seen unchanged for STALE_S, if its holder does not
    answer, and decides after its contest. With the database away both go by the majority.
    """

    @initialize(num_members=st.integers(0, len(GATEWAYS)))
    def start(self, num_members: int) -> None:
        self.now_s = 100.0
        self.members = frozenset(members := GATEWAYS[:num_members])
        self.holder, self.epoch, self.renewed_s = "a", 1, self.now_s
        self.mandates = {"a": Mandate([members]), "b": Mandate([members])}
        self.mandates["a"].row_holds(self.now_s)
        self.epochs = {"a": 1, "b": 0}
        self.contests: dict[str, Contest] = {}
        self.attached: dict[str, str] = {}
        self.seen = dict.fromkeys(GATEWAYS, 1)
        self.under_way: list[tuple[str, str, float]] = []  # echoes: of whom, to whom, of which beat
        self.goodbyes: list[tuple[str, str]] = []

    def may_decide(self, name: str) -> bool:
        if not self.epochs[name] or (name in self.contests and not self.contests[name].is_won(self.now_s)):
            return False
        return self.mandates[name].holds(self.now_s)

    @rule(step_s=STEPS_S)
    def time_passes(self, step_s: float) -> None:
        self.now_s += step_s

    @rule(lost=st.booleans())
    def the_holder_renews(self, lost: bool) -> None:
        """`lost`: the database did it, and its answer never came."""
        asked_s, self.renewed_s = self.now_s, self.now_s
        if not lost:
            self.mandates[self.holder].row_holds(asked_s)

    @rule()
    def the_other_takes_a_stale_row(self) -> None:
        other = "b" if self.holder == "a" else "a"
        if self.now_s - self.renewed_s > STALE_S:
            contest = Contest(self.members)
            self.epoch += 1
            self.holder, self.renewed_s, self.epochs[other] = other, self.now_s, self.epoch
            self.mandates[other] = Mandate([self.members])
            self.mandates[other].row_holds(self.now_s)
            self.contests[other] = contest

    @rule(gateway=st.sampled_from(GATEWAYS), to=st.sampled_from(["a", "b"]), is_told=st.booleans())
    def a_gateway_goes(self, gateway: str, to: str, is_told: bool) -> None:
        """`is_told`: whom it leaves notices at once."""
        if self.epochs[to] < self.seen[gateway] or not self.epochs[to]:
            return
        before = self.attached.get(gateway)
        if before == to:
            return
        if before is not None and is_told:
            self.mandates[before].left(gateway)
        self.attached[gateway], self.seen[gateway] = to, self.epochs[to]
        self.mandates[to].came(gateway, self.now_s)
        if to in self.contests:
            self.contests[to].came(gateway, self.now_s)

    @rule(name=st.sampled_from(["a", "b"]))
    def beats(self, name: str) -> None:
        """Each gateway that is attached echoes; when the echoes come is another matter."""
        self.under_way += [(gateway, name, self.now_s) for gateway, at in self.attached.items() if at == name]

    @rule(data=st.data())
    def an_echo_arrives(self, data: st.DataObject) -> None:
        """Late and out of order, as after a pause of the process."""
        if self.under_way:
            gateway, name, sent_s = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
            self.mandates[name].echoed(gateway, sent_s)

    @rule()
    def all_is_well_for_a_moment(self) -> None:
        for name in ("a", "b"):
            self.beats(name)
        for gateway, name, sent_s in self.under_way:
            self.mandates[name].echoed(gateway, sent_s)
        self.under_way.clear()

    @rule(num_staying=st.integers(0, len(GATEWAYS)), beat_s=STEPS_S, after_s=STEPS_S)
    def the_holder_is_cut_off(self, num_staying: int, beat_s: float, after_s: float) -> None:
        """From the database, with some of the gateways; the others go to whoever takes the row."""
        holder, other = self.holder, "b" if self.holder == "a" else "a"
        for gateway in self.members:
            self.a_gateway_goes(gateway, holder, True)
        self.now_s += SETTLES_S
        self.all_is_well_for_a_moment()
        self.now_s += STALE_S + 0.01
        self.all_is_well_for_a_moment()
        self.the_other_takes_a_stale_row()
        self.now_s += beat_s
        self.all_is_well_for_a_moment()
        self.one_at_most_decides()
        for gateway in sorted(self.members)[num_staying:]:
            self.a_gateway_goes(gateway, other, False)
        self.now_s += after_s
        self.the_holder_renews(False)
        self.one_at_most_decides()
        self.all_is_well_for_a_moment()

    @invariant()
    def one_at_most_decides(self) -> None:
        assert not (self.may_decide("a") and self.may_decide("b"))


World.TestCase.settings = settings(max_examples=200, stateful_step_count=25, deadline=None)
TestNeverTwo = World.TestCase
