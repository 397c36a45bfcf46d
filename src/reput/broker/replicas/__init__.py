"""A broker under a controller: its membership in a replica group, epochs, in-sync set, lease."""
