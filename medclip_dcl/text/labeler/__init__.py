"""Rules that read what a sentence or a report says about the CheXpert findings."""
