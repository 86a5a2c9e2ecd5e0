"""What the simulator counts beside what hardware counts: `benchmarks/calibrate.py` and `pages/calibration.py`."""
