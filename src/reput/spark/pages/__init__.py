"""Reports as HTML pages that load nothing.

``store`` and ``audit`` compute what their page shows, with the geometry of ``charts`` and the
numbers of ``texts``; ``environment`` renders the templates of ``templates/``.
"""
