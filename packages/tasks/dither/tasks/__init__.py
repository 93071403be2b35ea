"""What the data is: genome regions, bubble diagrams, language."""
