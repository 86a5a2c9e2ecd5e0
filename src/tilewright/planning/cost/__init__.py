"""How long anything takes that planning and tuning choose from. Time is estimated here and nowhere else above the
performance model (`tilewright.model`): work is counted from a configuration (`kernels.block_work`, or beside the terms)
and becomes time by terms, whose constants stand in the module of the family, then by what measurements add.

plans        of GEMM kernels as columns, with the launches around them: `plan_seconds`
             terms: wgmma_terms; warp_terms with block_clocks (CUDA cores and mma.sync); exchange (sums that blocks
             share); promising, first_cut (which kernels, and plans of wgmma, are priced at all)
             correction: a network over features of plans (wgmma_features, simt_features, and those in `plans`)
             <family>_fit.json: constants and networks, which benchmarks/fit_choice.py and fit_first_cut.py write
groups       of several sizes in one launch
gemv, coded  of kernels that read one matrix: GEMV; weights in codes
launches     around a product, which move bytes

`distributed.overlap` takes the times of products from here, and runs the steps of ranks on them and on the link's.

`tests/planning/test_one_cost_model.py` looks for estimates elsewhere.
"""
