"""Generators of conversations that grow: chats, and agents that call tools and branch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.types import Request
from workloads.arrivals import arrival_times_ns
from workloads.dials import (
    MAX_REQUESTS,
    Stream,
    check_dial,
    check_rate,
    draw_popular,
    sorted_requests,
    to_ns,
)
from workloads.fields import MAX_TOKENS
from workloads.reuse import infinite_hit_rate
from workloads.tree import Names
from workloads.workload import Workload

TOKEN_S = 0.02
"""Time to answer, s per token, that recorded arrivals of later turns allow for."""


def multi_turn(
    *,
    num_requests: int = 1000,
    turns: int = 5,
    system: int = 512,
    num_prefixes: int = 10,
    zipf: float = 1.0,
    prompt: int = 128,
    output: int = 256,
    think: float = 10.0,
    session_rate: float = 0.8,
    seed: int = 0,
) -> Workload:
    """Conversations that grow: each prompt is all that was said before, and a new message.

    A conversation begins with one of a few system prompts. Arrivals assume 20 ms per token of an
    answer; with ``--sessions closed`` a turn comes after the answer before it instead.

    Parameters
    ----------
    num_requests
        Turns in all, of as many conversations as it takes.
    turns
        Turns of each conversation.
    system, num_prefixes, zipf
        Tokens of a system prompt (0: none), how many there are, and their popularity: the k-th is
        ``k ** -zipf`` times as popular as the first.
    prompt, output
        Tokens of a user's message and of an answer.
    think
        Mean time between an answer and the next message, s, exponentially distributed.
    session_rate
        Conversations that start per second, a Poisson process.
    seed
        Of the random numbers.
    """
    check_dial("turns", turns, 1, 10**6)
    loop = _Loop("multi-turn", turns, system, num_prefixes, zipf, 0, prompt, output, think)
    return _sessions(loop, num_requests, session_rate, seed)


def agent(
    *,
    num_requests: int = 1000,
    steps: int = 12,
    branch: float = 0.1,
    system: int = 4096,
    num_prefixes: int = 3,
    zipf: float = 1.0,
    task: int = 512,
    result: int = 512,
    output: int = 128,
    think: float = 2.0,
    session_rate: float = 0.3,
    seed: int = 0,
) -> Workload:
    """Tool loops with branching: an agent calls tools, and now and then goes back and tries anew.

    Each prompt is the system prompt with the tools, the task, and every call and result so far.

    Parameters
    ----------
    num_requests
        Steps in all, of as many tasks as it takes.
    steps
        Steps of a task.
    branch
        Probability that a step goes on from an earlier one, drawn uniformly, instead of the last.
    system, num_prefixes, zipf
        Tokens of an agent's system prompt, how many agents there are, and their popularity.
    task, result, output
        Tokens of a task, of what a tool returns, and of a call.
    think
        Mean time that a tool takes, s, exponentially distributed.
    session_rate
        Tasks that start per second, a Poisson process.
    seed
        Of the random numbers.
    """
    check_dial("steps", steps, 1, 10**6)
    loop = _Loop("agent", steps, system, num_prefixes, zipf, task, result, output, think, branch)
    return _sessions(loop, num_requests, session_rate, seed)


@dataclass(frozen=True, slots=True)
class _Loop:
    """What sessions of either kind are made of; lengths in tokens."""

    name: str
    turns: int
    system: int
    num_prefixes: int
    zipf: float
    task: int
    message: int
    output: int
    think: float
    branch: float = 0.0

    def check(self) -> None:
        """Refuse dials out of range."""
        check_dial("system", self.system, 0, MAX_TOKENS)
        check_dial("num_prefixes", self.num_prefixes, 1, 10**6)
        check_dial("zipf", self.zipf, 0, 10)
        check_dial("task", self.task, 0, MAX_TOKENS)
        check_dial("prompt" if self.name == "multi-turn" else "result", self.message, 1, MAX_TOKENS)
        check_dial("output", self.output, 1, MAX_TOKENS)
        check_dial("think", self.think, 0, 10**8)
        check_dial("branch", self.branch, 0, 1)
        longest = self.system + self.task + self.turns * (self.message + self.output)
        check_dial("the longest prompt", longest, 1, MAX_TOKENS)


def _sessions(loop: _Loop, num_requests: int, session_rate: float, seed: int) -> Workload:
    check_dial("num_requests", num_requests, 1, MAX_REQUESTS)
    loop.check()
    check_rate(session_rate, "session_rate", "sessions")
    check_dial("seed", seed, 0, 2**63)
    popular_rng, arrival_rng, think_rng, branch_rng = np.random.default_rng(seed).spawn(4)
    num_sessions = -(-num_requests // loop.turns)
    names = Names()
    system_bases = [names.take(loop.system) for _ in range(loop.num_prefixes)]
    system_of = draw_popular(loop.num_prefixes, loop.zipf, num_sessions, popular_rng).tolist()
    starts = arrival_times_ns("poisson", num_sessions, session_rate, 1.0, arrival_rng).tolist()
    requests: list[Request] = []
    for session, start_ns in enumerate(starts):
        history = Stream(names)
        history.add(loop.system, system_bases[system_of[session]])
        history.add(loop.task)
        after: list[Stream] = []  # the history after each turn
        arrival_ns = start_ns
        thinks = think_rng.exponential(loop.think, size=loop.turns) if loop.think else None
        for turn in range(min(loop.turns, num_requests - session * loop.turns)):
            think_ns = None
            if turn:
                think_ns = to_ns(thinks[turn]) if thinks is not None else 0
                arrival_ns += to_ns(loop.output * TOKEN_S) + think_ns
            if turn > 1 and loop.branch and branch_rng.random() < loop.branch:
                history = after[branch_rng.integers(turn - 1)].copy()
            history.add(loop.message)
            num_prompt_tokens = history.num_tokens
            history.add(loop.output)
            if loop.branch:
                after.append(history.copy())
            requests.append(
                Request(
                    request_id="",
                    arrival_ns=arrival_ns,
                    content=history.content(),
                    num_prompt_tokens=num_prompt_tokens,
                    num_output_tokens=loop.output,
                    session_id=str(session),
                    think_ns=think_ns,
                )
            )
    ordered = sorted_requests(requests)
    note = (
        f"{num_sessions} sessions of up to {loop.turns} turns give a hit rate of"
        f" {infinite_hit_rate(ordered, 1):.6f} in an infinite cache that tells prefixes apart to"
        " the token and keeps answers."
    )
    return Workload(name=loop.name, requests=ordered, notes=(note,))
