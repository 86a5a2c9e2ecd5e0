"""What was measured to be the fastest: plans, and the database of those that won.

plan_config     a plan as data: a kernel, and what is packed before it
order           in which order a kernel sums, so that a search can leave it alone
keys            what a winner is a winner of: a device and a problem
winner, winner_file, database     winners by device, problem and reduction order
old_lines       winners of older versions
lookup          what dispatch asks
shipped         tables that come with the package
"""
