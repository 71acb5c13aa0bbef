"""Which nodes a target means, and which description of the cluster counts when brokers differ."""

from __future__ import annotations

import pytest

from strandline.chaos.picture import Member, NoTarget, PartitionState, Picture, VoterState, resolve

MEMBERS = [
    *(Member(f"broker-{i}", "broker", i) for i in (1, 2, 3)),
    *(Member(f"controller-{i}", "controller", 100 + i) for i in (1, 2, 3)),
]
"""Members as compose names them: the name of a controller does not contain its id."""
WHOLE = PartitionState(2, 0, 0, (2, 3, 1), (1, 2, 3))


def picture(state: PartitionState = WHOLE, controller: int = 102) -> Picture:
    p = Picture()
    p.on_partition(0, state)
    p.on_quorum(controller, 1, {})
    return p


def who(target: str | list[str], p: Picture | None = None, **aliases: list[str]) -> list[str]:
    return resolve(target, p or picture(), MEMBERS, aliases, small_disk="broker-3")


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("leader", ["broker-2"]),
        ("follower", ["broker-3"]),  # in the order of the replicas
        ("followers", ["broker-3", "broker-1"]),
        ("active-controller", ["controller-2"]),
        ("standby-controller", ["controller-1"]),
        ("every-broker", ["broker-1", "broker-2", "broker-3"]),
        ("every-controller", ["controller-1", "controller-2", "controller-3"]),
        ("every-node", [m.name for m in MEMBERS]),
        ("small-disk", ["broker-3"]),
        ("controller-3", ["controller-3"]),
        (["leader", "active-controller"], ["broker-2", "controller-2"]),
        (["leader", "every-broker"], ["broker-2", "broker-1", "broker-3"]),
    ],
)
def test_target_is_resolved_in_the_present_picture(target: str | list[str], names: list[str]) -> None:
    assert who(target) == names


def test_alias_keeps_its_meaning() -> None:
    """It still means the old leader when another broker leads."""
    p = picture()
    victim = who("leader", p)
    p.on_partition(0, PartitionState(3, 1, 1, (2, 3, 1), (1, 3)))
    assert who("victim", p, victim=victim) == ["broker-2"]
    assert who("leader", p) == ["broker-3"]
    assert who("followers", p) == ["broker-1"]


@pytest.mark.parametrize(
    ("target", "p", "sentence"),
    [
        ("leader", picture(WHOLE._replace(leader=-1)), "partition 0 has no leader at present"),
        ("leader", Picture(), "partition 0 has no leader at present"),
        ("follower", picture(WHOLE._replace(isr=(2,))), "the ISR of partition 0 holds only its leader"),
        ("active-controller", Picture(), "no active controller is known"),
        ("broker-9", picture(), "there is no node 'broker-9'; there are broker-1, "),
    ],
)
def test_target_without_a_node_is_reported_in_one_sentence(target: str, p: Picture, sentence: str) -> None:
    with pytest.raises(NoTarget, match=sentence):
        who(target, p)


def test_outdated_description_of_a_partition_is_ignored() -> None:
    """A broker that is cut off reports the last partition epoch that it knew, which is lower than that of the others."""
    p = picture()
    change = p.on_partition(0, PartitionState(3, 1, 1, (2, 3, 1), (1, 3)))
    assert change is not None
    assert change.text == "partition 0: leader 2 -> 3, leader epoch 0 -> 1, ISR [1,2,3] -> [1,3]"
    assert (change.fields["leader_before"], change.fields["leader"], change.fields["isr"]) == (2, 3, [1, 3])
    assert p.on_partition(0, WHOLE) is None
    assert p.partitions[0].leader == 3


def test_repeated_description_is_no_change() -> None:
    p = picture()
    assert p.on_partition(0, WHOLE) is None
    assert p.on_broker(1, 5) is None
    assert p.on_broker(1, 5) is None
    again = p.on_broker(1, 9)
    assert again is not None
    assert again.text == "broker 1 registered, broker epoch 5 -> 9"
    assert p.on_broker(1, 5) is None


def test_change_names_a_missing_leader() -> None:
    change = picture().on_partition(0, PartitionState(-1, 1, 1, (2, 3, 1), (2,)))
    assert change is not None
    assert "leader 2 -> none" in change.text


def test_older_quorum_epoch_is_ignored() -> None:
    p = picture()
    change = p.on_quorum(103, 4, {103: VoterState(True, 1.0)})
    assert change is not None
    assert change.text == "active controller 102 -> 103, epoch 1 -> 4"
    assert p.on_quorum(102, 1, {}) is None
    assert p.on_quorum(-1, 5, {}) is None
    assert (p.controller, p.controller_epoch, set(p.voters)) == (103, 4, {103})


def test_picture_is_whole_if_partitions_have_leaders_and_full_isrs() -> None:
    p = picture()
    assert p.is_whole
    p.on_partition(1, WHOLE._replace(isr=(1, 2)))
    assert not p.is_whole
    p.on_partition(1, WHOLE._replace(partition_epoch=1))
    assert p.is_whole
    assert not Picture().is_whole
    assert p.led_by([2]) == [0, 1]
