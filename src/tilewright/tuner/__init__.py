"""Tuning: the legal points of rungs, ranked, measured and searched; and the database of winners.

space     every point of the rungs that fit a problem; why one is illegal
rank      what a point is predicted to take, before it is compiled
order     in which order a kernel sums, so that a search can leave it alone
measure   compiled, held against float64, then timed
study     which point next: Optuna over the legal points, in SQLite or PostgreSQL, for any number of workers
tune      all of these within a budget in seconds
keys, database     winners by device and problem
trials    the tables of earlier searches
"""
