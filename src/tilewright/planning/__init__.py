"""From a problem to the launches that solve it on one GPU.

candidates, works, choices   which kernels come into question, and how long each would take by the performance model
skinny                       which GEMV kernel, for problems whose m or n is small
kernels, assembly, plan      kernels by class of problem; from a choice to a plan: launches, settled but for addresses
dispatch                     measured winner, else estimate, else what is right everywhere; found once and remembered
on_paper                     the same with no GPU, for those who tune, export and predict
"""
