"""Every order of warps and copies that can matter, up to a bound: is there a race, a deadlock, another result?

    trace     the steps of one run, what each comes after, and which pairs could come the other way round
    orders    which to run next, by dynamic partial-order reduction with sleep sets; each cluster of blocks by itself

Two orders are equivalent if one becomes the other by exchanging neighbouring steps that do not concern each other. One
run speaks for all orders equivalent to it, since the race detectors compare what orders two accesses, not their times.
So only orders that are not equivalent are run: for a kernel whose barriers leave no choice that is one.
"""

from tilewright.simulator.search.orders import OrderSearch, search_orders

__all__ = ["OrderSearch", "search_orders"]
