"""A Markdown page for every rung, from what the simulator counts, the compiler reports and the records say.

`pages()` makes the texts, by path below the folder: an index, and `<ladder>/<rung>.md`. What depends on the compiler
stands between markers, and is left out of a comparison where the page names another compiler than ours.
"""

from tilewright.report.pages.gather import Told, gather
from tilewright.report.pages.index import pages, stale, written

__all__ = ["Told", "gather", "pages", "stale", "written"]
