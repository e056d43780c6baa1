"""What people read: tables, terminal plots and report files."""
