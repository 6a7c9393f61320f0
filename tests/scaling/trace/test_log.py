"""Peaks by phase and cause, read off logs that are written by hand."""

from __future__ import annotations

from scaling.ownership import Cause
from scaling.trace.log import Section, profile
from strategies.estimate import CauseBytes, Phase
from tests.scaling.trace.builders import BACKWARD, FORWARD, freed, log_of, made, resized


def test_profile_takes_the_highest_moment_of_every_phase() -> None:
    log = log_of(
        [(FORWARD, [made(0, 100), made(1, 50), freed(1, 50), made(2, 10)]), (BACKWARD, [made(3, 30), freed(0, 100)])],
        causes={0: Cause.PARAMETERS, 1: Cause.LOGITS, 3: Cause.GRADIENTS},
    )
    forward, backward = profile(log).phases
    assert (forward.phase, forward.causes) == (Phase.FORWARD, CauseBytes(parameters=100, logits=50))
    assert (backward.phase, backward.causes) == (
        Phase.BACKWARD,
        CauseBytes(parameters=100, activations=10, gradients=30),
    )
    assert profile(log).peak_bytes == 150


def test_profile_of_one_step_leaves_out_the_others() -> None:
    later = Section(1, 0, Phase.FORWARD)
    log = log_of([(FORWARD, [made(0, 100), freed(0, 100)]), (later, [made(1, 60)])])
    assert [phase.total_bytes for phase in profile(log, step=1).phases] == [60]
    assert [phase.total_bytes for phase in profile(log).phases] == [100]


def test_what_lives_when_a_phase_begins_counts_for_it() -> None:
    """As ``torch.cuda.reset_peak_memory_stats`` starts from what is allocated."""
    log = log_of([(FORWARD, [made(0, 100)]), (BACKWARD, [freed(0, 100), made(1, 60)])])
    assert [phase.total_bytes for phase in profile(log).phases] == [100, 100]


def test_resize_changes_what_lives() -> None:
    log = log_of([(FORWARD, [made(0, 100), resized(0, -100), made(1, 20), resized(0, 100)])])
    assert log.live_bytes().tolist() == [100, 0, 20, 120]


def test_order_of_adjacent_frees_does_not_count() -> None:
    """Containers let go of tensors in an order of their own."""
    one = log_of([(FORWARD, [made(0, 1), made(1, 2), freed(0, 1), freed(1, 2)])])
    other = log_of([(FORWARD, [made(7, 1), made(3, 2), freed(3, 2), freed(7, 1)])])
    assert one.equals(other)
    assert not one.equals(log_of([(FORWARD, [made(0, 1), made(1, 2), freed(1, 2)])]))


def test_cause_and_stream_count() -> None:
    plain = log_of([(FORWARD, [made(0, 1)])])
    assert not plain.equals(log_of([(FORWARD, [made(0, 1)])], causes={0: Cause.GRADIENTS}))
    assert not plain.equals(log_of([(FORWARD, [made(0, 1)])], streams={0: 1}))
