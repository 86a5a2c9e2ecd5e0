"""What was measured to be the fastest: choices, and the database of those that won.

choice      a plan as data: a kernel, in how many parts it sums, what is copied first
order       in which order a kernel sums, so that a search can leave it alone
keys        what a winner is a winner of: a device and a problem
winner, winner_file, database     winners by device, problem and reduction order
lookup      what dispatch asks
shipped     tables that come with the package
"""
