"""The pages: each module has a handler, which returns the data of its template."""
