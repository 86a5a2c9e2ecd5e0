"""Facts about GPUs, each with its source: what a device is, and what its architecture can execute."""
