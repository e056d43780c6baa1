"""Terminal output: console, tables, numbers, progress. The only room that imports rich."""
