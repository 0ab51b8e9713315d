"""Measuring: whose turn it is, medians, and memory of known size."""

import gc
import json

import torch

from scalespaces._measure import Spread, environment, peak_memory, ratios, take_turns


class Clock:
    """A clock that goes on only when a step takes its time."""

    def __init__(self):
        self.now, self.calls = 0.0, []

    def step(self, name, *seconds):
        remaining = iter(seconds)

        def run():
            self.calls.append(name)
            self.now += next(remaining)

        return run


def test_steps_take_turns_and_warm_up_does_not_count():
    clock = Clock()
    seconds = {"plain": (100, 1, 2, 3), "ours": (7, 2, 2, 12), "paper": (9, 4, 4, 4)}
    steps = {name: clock.step(name, *some) for name, some in seconds.items()}
    times = take_turns(steps, 3, clock=lambda: clock.now)
    assert clock.calls == ["plain", "ours", "paper"] * 4
    assert times == {"plain": [1, 2, 3], "ours": [2, 2, 12], "paper": [4, 4, 4]}
    assert ratios(times["ours"], times["plain"]) == Spread(1.5, 2, 3)  # of rounds, not of medians
    assert ratios(times["plain"], times["plain"]) == Spread(1, 1, 1)


def test_a_step_against_itself_is_called_as_often():
    clock = Clock()
    steps = {name: clock.step(name, *[0.25] * 100) for name in ("one", "other")}
    times = take_turns(steps, 4, at_least=1.0, clock=lambda: clock.now)
    assert clock.calls.count("one") == clock.calls.count("other") == 1 + 4 * 4
    assert clock.calls[2:10] == ["one"] * 4 + ["other"] * 4
    assert times["one"] == times["other"] == [0.25] * 4  # of one call


def test_a_turn_waits_for_the_device_on_both_sides_and_collects_no_garbage():
    order = []
    steps = {"step": lambda: order.append(("step", gc.isenabled()))}
    take_turns(steps, 1, wait=lambda: order.append("wait"), clock=lambda: order.append("clock") or 0.0)
    assert order == ["wait", "clock", ("step", False), "wait", "clock"] * 2
    assert gc.isenabled()


def test_memory_of_known_allocations():
    def step():
        first = torch.empty(10_000)
        del first
        second, third = torch.empty(3_000), torch.empty(4_000)
        return second, third

    before = torch.empty(50_000)
    assert peak_memory(step) == 40_000
    assert peak_memory(lambda: [step(), torch.empty(5_000)]) == 48_000
    assert peak_memory(lambda: None) == 0
    del before
    x = torch.rand(100, 100).T  # not contiguous: layer_norm copies it, inside its kernel
    assert peak_memory(lambda: torch.nn.functional.layer_norm(x, (100,))) >= 80_000


def test_the_environment_is_plain_and_complete():
    facts = environment()
    assert (json.loads(json.dumps(facts)), facts["torch"]) == (facts, torch.__version__)
    assert facts["threads"] == torch.get_num_threads()
    assert facts["cpu"]
