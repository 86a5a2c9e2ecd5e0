"""The units that work beside the threads: mbarriers, TMA, wgmma; and who is ordered after what.

    clocks      what each warp knows to be over          phases     mbarriers: arrivals, bytes, phases
    meetings    named barriers, barriers of clusters     flights    boxes under way from and to global memory
    descriptor  what wgmma makes of a descriptor         queue      wgmma under way
    ordered     the race detector over clocks            units      all of it for the blocks that run now

The other modules are the operations and instructions of the statements, made by `translate`.
"""
