"""Reports as HTML pages that load nothing.

``store`` and ``audit`` compute what their page shows, with the geometry and texts of
``reput.html``; ``environment`` renders the templates of ``templates/``.
"""
