"""Index arithmetic as values: where a tile lies in shared memory, and what an access to it costs."""
