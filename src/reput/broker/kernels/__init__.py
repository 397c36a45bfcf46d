"""Kernels that read and answer frames of remoting.

``gate`` verifies the signatures of a read's frames, and looks up what their users may do.
"""
