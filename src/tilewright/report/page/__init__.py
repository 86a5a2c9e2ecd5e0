"""The report page: one HTML file that works offline, with pictures drawn from what the simulator saw."""

# from tilewright.report.page.html import write_page
# from tilewright.report.page.ladder import collect_page

__all__ = ["collect_page", "write_page"]
