"""HTML pages that load nothing: the reports of Spark's jobs, and the pages of the console.

texts         numbers, sizes and times in words
charts        geometry of charts and tables
environment   the Jinja2 environment: escaping, and the policy of a page's style and script
templates/    the frame of a report, macros, style and script
"""
