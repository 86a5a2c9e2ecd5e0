"""Schedules as JSON: what is not a schedule is refused in words."""

from __future__ import annotations

import pytest

from tests.schedule.test_steps import CASES
from tilewright.errors import TilewrightError
from tilewright.schedule import Schedule, from_json, to_json


@pytest.mark.parametrize("name", CASES)
def test_every_step_goes_there_and_back(name: str) -> None:
    before, step = CASES[name]
    schedule = Schedule(*before, step)
    assert from_json(to_json(schedule)) == schedule


@pytest.mark.parametrize(
    ("text", "headline"),
    [
        ("{", "This is not a schedule: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)."),
        ("{}", "This is not a schedule: it is not a list."),
        ("[3]", "Entry 1 is not a step: 3."),
        ('[{"step": "Splat"}]', "There is no step 'Splat'."),
        ('[{"step": ["Split"]}]', "There is no step \"['Split']\"."),
        ('[{"step": "Unroll"}]', "Entry 1 does not fit Unroll: "),
        ('[{"step": "Fuse", "into": "x"}]', "Entry 1 does not fit Fuse: "),
        ('[{"step": "Reorder", "loops": ["n", "m"], "by": 2}]', "Entry 1 does not fit Reorder: it has no by."),
        ('[{"step": "Fuse", "loops": ["m", "n"], "into": "t", "by": 2}]', "Entry 1 does not fit Fuse: it has no by."),
        ('[{"step": "Snake", "loops": ["n"], "step_": 1}]', "Entry 1 does not fit Snake: it has no step_."),
        ('[{"step": "Unroll", "loop": "m", "times": 2}]', "Entry 1 does not fit Unroll: it has no times."),
        ('[{"step": "Reorder", "loops": "nm"}]', "Entry 1 does not fit Reorder: loops is 'nm', not a list of names."),
        (
            '[{"step": "Snake", "loops": [["n"]]}]',
            "Entry 1 does not fit Snake: loops is (['n'],), not a list of names.",
        ),
        ('[{"step": "Unroll", "loop": 1e999}]', "This is not a schedule: 1e999 is not a finite number."),
        (
            '[{"step": "Unroll", "loop": ' + '{"value_of": "Xor", "a": ' * 900 + "1" + "}" * 900 + "}]",
            "This is not a schedule: it is nested more than 100 deep.",
        ),
        (
            '[{"step": "Bind", "loop": "m", "level": {"enum": "Level", "value": "grid.w"}}]',
            "Entry 1 does not fit Bind: 'grid.w' is not a valid Level.",
        ),
        (
            '[{"step": "Relayout", "tile": "A_tile", "arrangement": {"value_of": "Xor", "turns": 1}}]',
            "Entry 1 does not fit Relayout: ",
        ),
    ],
)
def test_what_is_no_schedule_is_refused(text: str, headline: str) -> None:
    with pytest.raises(TilewrightError) as refusal:
        from_json(text)
    assert refusal.value.headline.startswith(headline)
