"""That a number is bad, and what to do about it. One rule is one generator; rules read results.

The order of the imports is the order in which rules run; the report sorts by cost.
"""

from hpcprof.findings.model import Finding
from hpcprof.findings.registry import RULES, find

# isort: split
from hpcprof.findings import (
    agent_rules,
    clock_rules,
    hook_rules,
    input_rules,
    interconnect_rules,
    one_model_rules,
    profiler_rules,
    quality_rules,
    straggler_rules,
    training_rules,
)

__all__ = [
    "RULES",
    "Finding",
    "agent_rules",
    "clock_rules",
    "find",
    "hook_rules",
    "input_rules",
    "interconnect_rules",
    "one_model_rules",
    "profiler_rules",
    "quality_rules",
    "straggler_rules",
    "training_rules",
]
