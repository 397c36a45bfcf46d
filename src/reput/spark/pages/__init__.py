"""Reports as HTML pages that load nothing."""
