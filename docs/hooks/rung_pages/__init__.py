"""A Markdown page for every rung, from what the simulator counts, the compiler reports and the records say.

`pages()` makes the texts, by path below the folder: an index, and `<ladder>/<rung>.md`. The site has them.
"""

from rung_pages.gather import Told, gather
from rung_pages.index import pages, paths

__all__ = ["Told", "gather", "pages", "paths"]
