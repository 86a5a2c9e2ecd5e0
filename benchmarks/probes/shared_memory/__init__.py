"""The parts of `shared_memory_rules.py`: accesses, kernels, launches, witnesses, verdicts."""
