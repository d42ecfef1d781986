"""The laws of rules find every bug that the mutation check puts into rules (`python -m tests.fuzz --by-tests`)."""

from __future__ import annotations

import pytest

from tests.fuzz._mutants import MUTANTS, Mutant
from tests.ir.rules import _more_cases, test_laws
from tests.ir.rules._cases import Case

OF_RULES = [mutant for mutant in MUTANTS if mutant.primitives]
LAWS = (test_laws.test_splitting_any_factor_gives_the_whole_result, test_laws.test_linear_operands_carry_partial_sums)


def breaks_a_law(case: Case) -> bool:
    for law in LAWS:
        try:
            law(case)
        except Exception:
            return True
    return False


@pytest.mark.parametrize("mutant", OF_RULES, ids=lambda mutant: mutant.name)
def test_a_bug_in_a_rule_breaks_a_law(mutant: Mutant) -> None:
    """Of operators with that bug alone; without it, `tests/ir/rules/test_laws.py` passes."""
    cases = [case for case in _more_cases.PARTS if case.primitive in mutant.primitives]
    with mutant.apply():
        assert any(map(breaks_a_law, cases))
