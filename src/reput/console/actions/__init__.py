"""Changes that users make on pages: each has a preview and, once confirmed, a receipt."""
