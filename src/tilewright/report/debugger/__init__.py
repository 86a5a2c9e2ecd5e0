"""The page of `tilewright watch`: one block, statement by statement, forward and back.

watch(built)  ->  a Recording, three linked texts, pictures of accesses  ->  page_text  ->  one HTML document
"""

from tilewright.report.debugger.page import Watched, page_text
from tilewright.report.debugger.watch import left_out, small_integers, watch

__all__ = ["Watched", "left_out", "page_text", "small_integers", "watch"]
