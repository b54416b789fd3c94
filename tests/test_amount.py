"""``OCTAVO_TESTS`` decides how much of long tests runs, and nothing else."""

import sys
from pathlib import Path

import amount
import pytest

MODULE = """
    import pytest
    from hypothesis import given, settings, strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, rule

    SEEN = []
    RUNS = []

    @pytest.mark.sample(4)
    @pytest.mark.parametrize("number", range(10))
    def test_table(number):
        SEEN.append(number)

    @pytest.mark.sample(4)
    @pytest.mark.parametrize("number", range(3))
    def test_short_table(number):
        SEEN.append(100 + number)

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("number", range(2))
    def test_one_of_a_table(number):
        SEEN.append(200 + number)

    @pytest.mark.parametrize("number", range(10))
    def test_unmarked_table(number):
        pass

    @settings(max_examples=200, deadline=None, database=None)
    @given(st.integers())
    def test_property(number):
        RUNS.append(number)

    class Machine(RuleBasedStateMachine):
        @rule()
        def step(self):
            pass

    TestMachine = Machine.TestCase
    TestMachine.settings = settings(max_examples=200, deadline=None, database=None)

    def test_what_ran():
        print("seen", SEEN, "examples", len(RUNS), "machines", TestMachine.settings.max_examples)
"""


@pytest.fixture
def run_module(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    # Plug-ins of other packages take longer to load than these tests to run.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\nmarkers = sample(count): a table")
    pytester.makepyfile(MODULE)

    def run(amount: str | None, *arguments: str) -> pytest.RunResult:
        monkeypatch.delenv("OCTAVO_TESTS", raising=False)
        monkeypatch.delenv("OCTAVO_TEST_SECONDS", raising=False)
        if amount is not None:
            monkeypatch.setenv("OCTAVO_TESTS", amount)
        command = (sys.executable, "-m", "pytest", "-p", "amount", "-p", "no:cacheprovider", "-s", *arguments)
        return pytester.run(*command)

    return run


@pytest.mark.parametrize("amount", [None, "full"])
def test_everything_runs_unless_less_is_asked_for(run_module, amount: str | None) -> None:
    ended = run_module(amount)
    ended.assert_outcomes(passed=10 + 3 + 2 + 10 + 3)
    seen = [*range(10), *range(100, 103), 200, 201]
    ended.stdout.fnmatch_lines([f"*seen {str(seen).replace('[', '[[]')} examples 200 machines 200*"])


def test_a_sample_spans_its_table_and_examples_are_fewer(run_module) -> None:
    ended = run_module("quick")
    ended.assert_outcomes(passed=4 + 3 + 1 + 10 + 3, deselected=7)
    seen = [0, 3, 6, 9, 100, 101, 102, 200]
    ended.stdout.fnmatch_lines([f"*seen {str(seen).replace('[', '[[]')} examples 25 machines 25*"])


def test_one_entry_can_be_run_by_its_name(run_module) -> None:
    ended = run_module("quick", "test_one_entry_can_be_run_by_its_name.py::test_table[4]")
    ended.assert_outcomes(passed=1)


@pytest.mark.parametrize(("seconds", "num_skipped"), [("1000", 0), ("0", 2)])
def test_what_does_not_begin_in_time_is_skipped_and_counted(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, seconds: str, num_skipped: int
) -> None:
    monkeypatch.setenv("OCTAVO_TEST_SECONDS", seconds)
    pytester.makepyfile("def test_a():\n    pass\n\ndef test_b():\n    pass\n")
    ended = pytester.inline_run("-p", "no:cacheprovider", plugins=[amount])
    ended.assertoutcome(passed=2 - num_skipped, skipped=num_skipped)


def test_a_wrong_amount_is_an_error(run_module) -> None:
    ended = run_module("some")
    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    ended.stderr.fnmatch_lines(["*OCTAVO_TESTS is 'some'; it must be quick or full*"])
