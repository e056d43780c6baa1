"""Reports: tables, terminal plots and report files."""
