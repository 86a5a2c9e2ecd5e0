"""What ranks run is imported by their processes alone."""

collect_ignore_glob = ["*_cases.py", "on_ranks.py"]
