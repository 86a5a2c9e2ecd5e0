"""From a problem to the launches that solve it on one GPU.

candidates, sharing          which kernels come into question, and which of them share the sum over k
ranking, skinny, coded, ragged, gated   which of them, of GEMM, GEMV, weights in codes, groups, two products
cost                         how long each of them takes
kernels, assembly, plan      kernels by class of problem; from a choice to a plan: launches, settled but for addresses
dispatch                     measured winner, else estimate, else what is right everywhere; found once and remembered
on_paper                     the same with no GPU, for those who tune, export and predict
"""
