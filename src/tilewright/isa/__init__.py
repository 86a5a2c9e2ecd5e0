"""Instructions of the tensor cores: one file a family, each instruction stated once."""
