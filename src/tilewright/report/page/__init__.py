"""The report page: one HTML file that works offline, with pictures drawn from what the simulator saw.

watch(build)  ->  events of one block  ->  pictures as plain values  ->  page_text  ->  one HTML document
"""

from tilewright.report.page.html import page_text, require_plotly, write_page
from tilewright.report.page.ladder import Page, collect_page

__all__ = ["Page", "collect_page", "page_text", "require_plotly", "write_page"]
