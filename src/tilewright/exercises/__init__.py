"""Puzzles about kernels, in the order of the tutorial: a file to edit, and a check by the simulator with hints."""

from tilewright.errors import UnknownName
from tilewright.exercises.cuda_cores import CUDA_CORES
from tilewright.exercises.exercise import Exercise, Gap, Goal
from tilewright.exercises.judging import Judged, Judgement, judge
from tilewright.exercises.tensor_cores import TENSOR_CORES

EXERCISES = {exercise.name: exercise for exercise in (*CUDA_CORES, *TENSOR_CORES)}


def find_exercise(name: str) -> Exercise:
    """The exercise of a name. Raises UnknownName, with the nearest."""
    if name not in EXERCISES:
        raise UnknownName("exercise", name, EXERCISES)
    return EXERCISES[name]


__all__ = ["EXERCISES", "Exercise", "Gap", "Goal", "Judged", "Judgement", "find_exercise", "judge"]
