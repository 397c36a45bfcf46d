"""Topics: their table, rules, attributes and special kinds."""
