"""Tuning: the legal points of rungs, ranked, measured and searched; and the database of winners.

space       every point of the rungs that fit a problem; why one is illegal
rank        what a point is predicted to take, before it is compiled
order       in which order a kernel sums, so that a search can leave it alone
compiling   candidates looked at and compiled in other processes
measure     held against float64, then timed
study       which candidate next: Optuna, in SQLite or PostgreSQL (storage), for any number of workers; encoding
tune        all of these within a budget in seconds; session puts them together for one problem on a GPU
keys, winners, winner_file, database     winners by device, problem and reduction order
lookup      what dispatch asks

`tilewright.bench.search` is another search: one rung, every point in random order, each beside cuBLAS, as a table
that is recorded and shown. It chooses nothing for `matmul`.
"""
