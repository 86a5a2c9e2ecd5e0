"""Pages of docs that records or rungs decide: `benchmarks/write_page.py` writes and checks them."""
