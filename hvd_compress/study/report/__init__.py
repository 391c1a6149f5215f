"""What the records of a study say, as tables and pictures on one page."""
