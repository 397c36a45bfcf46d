"""``reput broker --check``: whether a store can move from a Java broker to reput, or back.

Every check only reads. It takes no lock, so that it can run beside a broker on the store.
"""
