"""What a bubble diagram must fulfil, as a table, as rules, and as a goal that guides sampling."""
