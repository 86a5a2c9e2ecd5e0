"""The call as an operator of PyTorch. Its modules are imported where PyTorch is."""
