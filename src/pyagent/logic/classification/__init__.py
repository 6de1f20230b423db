"""Classification: labels and taxonomies, examples, classifiers in exact code and by a model, calibration."""
