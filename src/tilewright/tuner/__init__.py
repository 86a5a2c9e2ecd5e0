"""Tuning: the plans that the library could run for a problem, ranked, measured and searched.

space       every candidate for a problem, ranked by the cost model; why one is illegal
processes   that work beside this one; compiling: candidates that they rank and compile
measure     held against float64 (sample), then timed
claims      work that processes and machines share, in SQLite or PostgreSQL (storage)
study       which candidate next: Optuna, for any number of workers; encoding
fleet       a list of problems, shared likewise
tune        all of these within a budget in seconds; session puts them together for one problem on a GPU
first       what `matmul` runs now, chosen and compiled while the rest is imported

What won is kept by `tilewright.winners`, which dispatch reads.

`tilewright.bench.search` is another search: one rung, every point in random order, each beside cuBLAS, as a table
that is recorded and shown. It chooses nothing for `matmul`.
"""
