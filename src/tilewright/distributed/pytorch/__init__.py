"""Products over the ranks of a process group of PyTorch. Its modules are imported where PyTorch is."""
