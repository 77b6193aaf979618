"""How fast are a million agents, a proof of one word, and the DA test beside automata-lib?"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

from orrery.systems.protocols.baselines.counting_population import compile_levels
from orrery.systems.protocols.ordered_population_protocols import (
    compile_rankers,
    dfa_of,
    in_da,
)
from orrery.systems.protocols.problems.population_graph import decide
from orrery.systems.protocols.problems.population_runs import (
    pairs_of,
    play_one_by_one,
    simulate,
)


def cpu(work: Any) -> tuple[Any, float]:
    """What a call gives, and its CPU seconds."""
    began = time.process_time()
    made = work()
    return made, time.process_time() - began


def million() -> dict[str, float]:
    """A one-way epidemic among a million agents, to the proof that it is over."""
    protocol = compile_levels("#a >= 1", "ab")
    states = np.full(1_000_000, protocol.initial["b"])
    states[0] = protocol.initial["a"]
    course, cpu_s = cpu(lambda: simulate(protocol, states, seed=1, budget=200_000_000))
    from orrery.base.rand import block

    me, other = pairs_of(block(1, 0, 200_000), 1_000_000, "")
    _, loop_s = cpu(lambda: play_one_by_one(protocol, states.copy(), me, other))
    return {
        "interactions": course.interactions,
        "cpu_s": cpu_s,
        "per_cpu_s": course.interactions / cpu_s,
        "plain_loop_per_cpu_s": 200_000 / loop_s,
    }


def thousand(language: str, word: str) -> dict[str, float]:
    """A compiled protocol with a thousand agents."""
    course, cpu_s = cpu(lambda: simulate(compile_rankers(language), word, seed=1))
    return {
        "interactions": course.interactions,
        "parallel_time": course.interactions / course.agents,
        "cpu_s": cpu_s,
    }


def proof() -> dict[str, float]:
    """The whole configuration graph of one word of seven letters."""
    found, cpu_s = cpu(lambda: decide(compile_rankers("X.:a & Y.:b"), "ababaab"))
    return {"configurations": found.configurations, "cpu_s": cpu_s}


def minimal_automata() -> dict[str, Any]:
    """Expressions to minimal automata, beside automata-lib where it is installed."""
    expressions = ["(ab)*", "a*b*", ".*aa.*", "(a|b)*abb", "(ab|b)*", ".*a.b.*"]
    _, ours_s = cpu(lambda: [dfa_of(each) for each in expressions for _ in range(20)])
    _, da_s = cpu(lambda: [in_da(each) for each in expressions for _ in range(20)])
    found: dict[str, Any] = {"ours_s": ours_s, "with_da_test_s": da_s, "automata_lib_s": None}
    try:
        from automata.fa.dfa import DFA
        from automata.fa.nfa import NFA
    except ImportError:
        return found

    def theirs() -> list[Any]:
        return [
            DFA.from_nfa(NFA.from_regex(each, input_symbols={"a", "b"}), minify=True)
            for each in expressions
            for _ in range(20)
        ]

    found["automata_lib_s"] = cpu(theirs)[1]
    return found


if __name__ == "__main__":
    print(json.dumps({
        "million_agents": million(),
        "thousand_first_is_a": thousand("X.:a", "a" * 500 + "b" * 500),
        "thousand_a_star_b_star": thousand("!(Xb < Ya)", "a" * 500 + "b" * 500),
        "proof_of_a_word": proof(),
        "expressions_to_automata": minimal_automata(),
    }))  # fmt: skip
