"""A Markdown page for every rung, from what the simulator counts, the compiler reports and the records say.

`pages()` makes the texts, by path below the folder: an index, and `<ladder>/<rung>.md`. The site has them.
"""

from tilewright.report.pages.gather import Told, gather
from tilewright.report.pages.index import pages, paths

__all__ = ["Told", "gather", "pages", "paths"]
