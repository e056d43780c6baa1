"""What people see on a terminal: the console, tables, numbers, progress. The only room that imports rich."""
