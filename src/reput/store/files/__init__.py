"""The disk, and what all rooms of a store need of it: files, folders, paths, mapped memory."""
