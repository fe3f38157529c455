"""Files of datasets: their JSON files and their paths."""
